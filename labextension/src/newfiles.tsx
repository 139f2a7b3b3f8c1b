/**
 * What is new on the host beside the notebook in front, most of it by its cells, and copying it here.
 *
 * New is what changed there since a cell of the notebook began for the first time, as far as this page knows: by the
 * session's clock, which is the files' too.
 */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { PathExt } from '@jupyterlab/coreutils';
import type { DocumentRegistry } from '@jupyterlab/docregistry';
import type { Contents, Kernel, KernelMessage } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import type { Widget } from '@lumino/widgets';
import * as React from 'react';

import type { Api, ICopy } from './api';
import { copy } from './copies';
import { safeText } from './describe';
import { formatBytes } from './format';
import { DRIVE } from './hostfiles';
import { folderOf, INotebook } from './missingfile';
import type { DeviceModel } from './model';
import { Section } from './section';

/** Most files that are listed. */
const MOST = 10;
/** Milliseconds by which a file's time may lie before the moment of its writing. */
const COARSE = 100;
/** Milliseconds after a cell's end until the list is made anew: another cell may follow. */
const PAUSE = 300;

interface INewFile extends ICopy {
  /** Name and size, for people. */
  label: string;
}

interface IKernelPlace {
  /** When its first cell began, in milliseconds since 1970. */
  since: number;
  /** Asked where it works: once, and after a cell, since later the question could bring its memory back. */
  kernel?: Kernel.IKernelConnection | null;
  folder?: string;
}

export class NewFiles implements DocumentRegistry.WidgetExtension {
  /** Newest first. */
  files: readonly INewFile[] = [];
  /** Whether somebody can see the list; else nothing is asked. */
  isSeen: () => boolean = () => false;
  onChanged: () => void = () => undefined;

  constructor(
    private readonly _app: JupyterFrontEnd,
    private readonly _model: DeviceModel
  ) {
    let kernel = _model.currentKernel;
    _model.changed.connect(() => {
      void this._ask(_model.currentKernel);
      if (kernel !== _model.currentKernel) {
        kernel = _model.currentKernel;
        void this.look();
      }
    });
  }

  createNew(widget: Widget): IDisposable {
    const { sessionContext } = widget as unknown as INotebook;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let hasRun = false;
    const hear = (_: unknown, { header, content }: KernelMessage.IMessage) => {
      const id = sessionContext.session?.kernel?.id;
      if (header.msg_type === 'execute_input' && id !== undefined) {
        hasRun = true;
        if (!this._places.has(id)) {
          this._places.set(id, { since: Date.parse(header.date) });
        }
      } else if (hasRun && (content as { execution_state?: string }).execution_state === 'idle') {
        hasRun = false;
        clearTimeout(timer);
        const place = this._places.get(id ?? '');
        if (place) {
          place.kernel = sessionContext.session?.kernel;
        }
        timer = setTimeout(() => void this._ask(id), PAUSE);
      }
    };
    sessionContext.iopubMessage.connect(hear);
    return new DisposableDelegate(() => {
      clearTimeout(timer);
      sessionContext.iopubMessage.disconnect(hear);
    });
  }

  /** List them anew, if somebody can see it. */
  async look(): Promise<void> {
    if (this.isSeen()) {
      const look = ++this._looks;
      const files = await this._list().catch(() => []);
      if (look === this._looks) {
        this.files = files;
        this.onChanged();
      }
    }
  }

  private async _ask(id?: string | null): Promise<void> {
    const place = this._places.get(id ?? '');
    const kernel = place?.kernel;
    const { host, kernels } = this._model.view;
    if (place && kernel && host?.files === true && kernels.has(kernel.id)) {
      delete place.kernel;
      place.folder ??= (await folderOf(kernel).catch(() => null)) ?? undefined;
      void this.look();
    }
  }

  private async _list(): Promise<INewFile[]> {
    const { context, sessionContext } = (this._app.shell.currentWidget ?? {}) as Partial<INotebook>;
    const kernel = sessionContext?.session?.kernel;
    const { host } = this._model.view;
    const place = this._places.get(kernel?.id ?? '');
    if (!context || place?.folder === undefined || host?.files !== true) {
      return [];
    }
    const { folder, since } = place;
    const { contents } = this._app.serviceManager;
    const found = await contents.get(`${DRIVE}:${PathExt.join(folder)}`, { type: 'directory', content: true });
    const path = context.path.replace(/^RTC:/, '');
    const beside = path.includes(':') ? '' : PathExt.dirname(path);
    const time = (file: Contents.IModel) => Date.parse(file.last_modified);
    return (found.content as Contents.IModel[])
      .filter(file => time(file) > since - COARSE && file.path !== path)
      .sort((one, other) => time(other) - time(one))
      .slice(0, MOST)
      .map(({ name, path, type, size }) => ({
        from: contents.localPath(path),
        to: PathExt.join(beside, name),
        toHost: false,
        overwrite: false,
        label: safeText(name) + (type === 'directory' ? '/' : ` · ${formatBytes(size ?? 0, this._model.units)}`)
      }));
  }

  private _looks = 0;
  /** By the kernel's id. */
  private readonly _places = new Map<string, IKernelPlace>();
}

interface IProps {
  host: string;
  files: readonly INewFile[];
  api: Api;
  trans: TranslationBundle;
}

export function NewFilesSection({ host, files, api, trans }: IProps): React.ReactElement {
  return (
    <Section title={trans.__('New on %1', host)}>
      {files.map(file => (
        <p key={file.from}>
          {file.label}{' '}
          <button
            type="button"
            className="sk-Button"
            aria-label={trans.__('Copy %1 to my computer', file.label)}
            onClick={() => void copy(api, file, trans)}
          >
            {trans.__('Copy to my computer')}
          </button>
        </p>
      ))}
    </Section>
  );
}
