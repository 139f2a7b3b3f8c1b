/**
 * The notebook widgets as the panel draws them: `sharedkernel.widgets` leaves a mark in a cell's output, and the parts
 * that it names are drawn here, from the figures that the panel has.
 *
 * Where those are not to be had, as when the session has ended, the output's own text is shown: what was so at the time.
 */

import type { DocumentRegistry } from '@jupyterlab/docregistry';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { TranslationBundle } from '@jupyterlab/translation';
import { VDomRenderer } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { PanelLayout, Widget } from '@lumino/widgets';
import * as React from 'react';

import type { Api } from './api';
import { userColours } from './colours';
import { DeviceStrip } from './devicestrip';
import type { DeviceModel } from './model';
import { ModelAdapter } from './modeladapter';
import { NotebookTable } from './notebooktable';
import { AsOf } from './standing';
import { TimelineSection } from './timelinesection';
import { turnsOf } from './words';

/** As in `sharedkernel/widgets/live.py`. */
const MIME_TYPE = 'application/vnd.sharedkernel.view+json';
/** Before the widgets of ipywidgets, whose rank is -10. */
const RANK = -20;
/** More notebooks are shown on request only. */
const MOST = 8;

interface IMark {
  session: string;
  parts: readonly string[];
}

interface IRenderMimeOwner {
  content: {
    rendermime: {
      addFactory(factory: IRenderMime.IRendererFactory, rank: number): void;
      createRenderer(mimeType: string): IRenderMime.IRenderer;
    };
  };
}

/** Teaches each notebook that is opened to draw the marks. */
export class NotebookViews implements DocumentRegistry.WidgetExtension {
  constructor(
    private readonly _device: DeviceModel,
    private readonly _api: Api,
    private readonly _trans: TranslationBundle
  ) {}

  createNew(panel: Widget): void {
    const { rendermime } = (panel as unknown as IRenderMimeOwner).content;
    const createRenderer = () =>
      new NotebookView(this._device, this._api, this._trans, () => rendermime.createRenderer('text/html'));
    rendermime.addFactory({ safe: true, mimeTypes: [MIME_TYPE], createRenderer }, RANK);
  }
}

/** An output with a mark. */
class NotebookView extends Widget implements IRenderMime.IRenderer {
  constructor(
    private readonly _device: DeviceModel,
    private readonly _api: Api,
    private readonly _trans: TranslationBundle,
    private readonly _createStatic: () => IRenderMime.IRenderer
  ) {
    super();
    this.layout = new PanelLayout();
    _device.changed.connect(this._choose, this);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this._output = model;
    this._mark = readMark(model.data[MIME_TYPE]);
    this._shown?.dispose();
    this._shown = null;
    this._isLive = null;
    this._choose();
    return Promise.resolve();
  }

  override dispose(): void {
    this._device.changed.disconnect(this._choose, this);
    super.dispose();
  }

  /** Show figures while the session is there, and what the output had otherwise. */
  private _choose(): void {
    const session = this._device.session(this._mark.session);
    const isLive = session !== undefined && !session.lingering;
    if (this._output === null || isLive === this._isLive) {
      return;
    }
    this._isLive = isLive;
    this._shown?.dispose();
    if (isLive) {
      this._shown = new Parts(new ModelAdapter(this._device), this._mark, this._api, this._trans);
    } else {
      const shown = this._createStatic();
      void shown.renderModel(this._output);
      this._shown = shown;
    }
    (this.layout as PanelLayout).addWidget(this._shown);
  }

  private _isLive: boolean | null = null;
  private _mark: IMark = { session: '', parts: [] };
  private _output: IRenderMime.IMimeModel | null = null;
  private _shown: Widget | null = null;
}

class Parts extends VDomRenderer<ModelAdapter> {
  constructor(
    model: ModelAdapter,
    private readonly _mark: IMark,
    private readonly _api: Api,
    private readonly _trans: TranslationBundle
  ) {
    super(model);
    // A notebook may have many of them, most of them out of sight.
    model.isVisible = () => this.isVisible && this._isInSight;
    this.addClass('sk-Panel');
    this.addClass('sk-View');
    // Its arrow keys move the timeline, not the notebook's selection.
    this.node.dataset.lmSuppressShortcuts = 'true';
    this._observer = new IntersectionObserver(entries => {
      this._isInSight = entries.some(entry => entry.isIntersecting);
      if (this._isInSight) {
        model.refresh();
      }
    });
    this._observer.observe(this.node);
  }

  override render(): React.ReactElement {
    const { device } = this.model;
    const { parts, session } = this._mark;
    const { status, user } = device.view;
    if (status === null) {
      return <></>;
    }
    const trans = this._trans;
    const own = user?.name ?? null;
    const names = { units: device.units, trans, own };
    const colours = userColours(status);
    const { running, next, waiting } = turnsOf(status.sessions);
    const table = { status, actions: null, currentId: session, colours, most: MOST, ...names };
    return (
      <div className={device.isLive ? 'sk-Panel-content' : 'sk-Panel-content sk-mod-stale'}>
        <AsOf model={device} trans={trans} />
        {parts.includes('queue') && (
          <NotebookTable
            {...table}
            title={trans.__('Running and next')}
            empty={trans.__('Nobody uses the device now.')}
            sessions={[...running, ...next, ...waiting]}
          />
        )}
        {parts.includes('usage') && (
          <>
            <NotebookTable
              {...table}
              title={trans.__('My notebooks')}
              empty=""
              sessions={status.sessions.filter(one => one.user === own)}
            />
            <DeviceStrip status={status} api={null} {...names} />
          </>
        )}
        {parts.includes('lanes') && (
          <TimelineSection api={this._api} colours={colours} isAway={!device.isLive} {...names} />
        )}
      </div>
    );
  }

  override dispose(): void {
    const { model } = this;
    this._observer.disconnect();
    super.dispose();
    model.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.model.refresh();
  }

  private _isInSight = false;
  private readonly _observer: IntersectionObserver;
}

function readMark(value: unknown): IMark {
  const { session, parts } = (typeof value === 'object' && value !== null ? value : {}) as Partial<IMark>;
  return {
    session: typeof session === 'string' ? session : '',
    parts: Array.isArray(parts) ? parts.map(String) : []
  };
}
