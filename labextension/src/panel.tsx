/** The side panel: the notebooks, the user's own first, the device, and for admins everybody's quotas. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { TranslationBundle } from '@jupyterlab/translation';
import { VDomRenderer } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import * as React from 'react';

import { Actions } from './actions';
import { userColours } from './colours';
import { ConnectForm } from './connectform';
import { DeviceStrip } from './devicestrip';
import { HostsSection } from './hosts';
import { deviceIcon } from './icons';
import type { DeviceModel } from './model';
import { ModelAdapter } from './modeladapter';
import { NewFiles, NewFilesSection } from './newfiles';
import { NotebookTable } from './notebooktable';
import { notice } from './notice';
import { NotifySwitch } from './notifyswitch';
import { PortsSection } from './ports';
import { QuotasSection } from './quotas';
import { RoomRequests } from './room';
import { AsOf, DrainNotice, WaitNotice } from './standing';
import { TimelineSection } from './timelinesection';

/** Where a browser remembers that the panel has opened by itself. */
const SHOWN = 'sharedkernel:panel-shown';
/** More notebooks are shown on request only. */
const MOST = 12;

export class DevicePanel extends VDomRenderer<ModelAdapter> {
  constructor(
    model: ModelAdapter,
    private readonly _actions: Actions,
    private readonly _news: NewFiles,
    private readonly _setNotifies: (notifies: boolean) => void,
    private readonly _onConnected: () => void,
    private readonly _trans: TranslationBundle
  ) {
    super(model);
    model.isVisible = _news.isSeen = () => this.isVisible;
    _news.onChanged = () => model.refresh();
    this.id = 'sharedkernel-panel';
    this.addClass('sk-Panel');
    this.title.icon = deviceIcon;
    this.title.caption = _trans.__('Shared GPU');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', _trans.__('Shared GPU'));
    this.node.tabIndex = -1;
  }

  override render(): React.ReactElement {
    const { device } = this.model;
    const trans = this._trans;
    const { user, status, gateway } = device.view;
    const isUnknown = device.problem === null && gateway.state === 'unconfigured';
    const trouble = notice(device, trans);
    const own = user?.name ?? null;
    const names = { units: device.units, trans, own };
    const colours = userColours(status);
    const form = (
      <ConnectForm
        api={this._actions.api}
        message={isUnknown ? gateway.message : null}
        onConnected={this._onConnected}
        trans={trans}
      />
    );
    return (
      <div className={device.isLive ? 'sk-Panel-content' : 'sk-Panel-content sk-mod-stale'}>
        <div role="status" aria-live="polite">
          {trouble !== null && !isUnknown && (
            <p className={trouble.passing ? 'sk-Notice' : 'sk-Notice sk-mod-problem'}>{trouble.text}</p>
          )}
          <DrainNotice model={device} trans={trans} />
          <WaitNotice model={device} {...names} />
        </div>
        {isUnknown && <section className="sk-Section">{form}</section>}
        {device.problem === null && ['refused', 'away'].includes(gateway.state) && (
          <section className="sk-Section">
            <details className="sk-Details" open={gateway.state === 'refused'}>
              <summary>{trans.__('Connect anew')}</summary>
              {form}
            </details>
          </section>
        )}
        {status !== null && (
          <>
            <AsOf model={device} trans={trans} />
            <RoomRequests status={status} actions={this._actions} {...names} />
            <NotebookTable
              title={trans.__('Notebooks')}
              empty={trans.__('There are none. Pick the kernel “Shared GPU” in the launcher.')}
              status={status}
              sessions={status.sessions}
              actions={this._actions}
              isAdmin={user?.admin === true}
              currentId={device.currentSession?.id ?? null}
              colours={colours}
              most={MOST}
              {...names}
            >
              <NotifySwitch isOn={device.notifies} onChange={this._setNotifies} trans={trans} />
            </NotebookTable>
            {this._news.files.length > 0 && (
              <NewFilesSection
                host={device.view.host?.name ?? ''}
                files={this._news.files}
                api={this._actions.api}
                trans={trans}
              />
            )}
            <HostsSection status={status} isFolded {...names} />
            <DeviceStrip
              status={status}
              api={user?.admin === true && device.isLive ? this._actions.api : null}
              {...names}
            />
            <TimelineSection api={this._actions.api} colours={colours} isFolded isAway={!device.isLive} {...names} />
            <PortsSection api={this._actions.api} trans={trans} />
            {user?.admin === true && (
              <QuotasSection api={this._actions.api} users={status.users.map(one => one.name)} trans={trans} />
            )}
          </>
        )}
      </div>
    );
  }

  /** Have the next activation leave the focus where it is. */
  keepFocusElsewhere(): void {
    this._takesFocus = false;
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.model.refresh();
    void this._news.look();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    if (this._takesFocus) {
      this.node.focus();
    }
    this._takesFocus = true;
  }

  private _takesFocus = true;
}

/** Open the panel once in a browser: when a notebook in front has a shared kernel for the first time. */
export function showOnce(app: JupyterFrontEnd, model: DeviceModel, panel: DevicePanel): void {
  const look = () => {
    if (model.currentSession === null || localStorage.getItem(SHOWN) !== null) {
      return;
    }
    model.changed.disconnect(look);
    localStorage.setItem(SHOWN, 'yes');
    if (!panel.isVisible) {
      panel.keepFocusElsewhere();
      app.shell.activateById(panel.id);
    }
  };
  model.changed.connect(look);
  look();
}
