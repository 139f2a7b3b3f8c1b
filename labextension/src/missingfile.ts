/** What a cell did not find on the host, and is beside its notebook on the user's machine: it can be copied there. */

import { Notification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { DocumentRegistry } from '@jupyterlab/docregistry';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

import type { Api } from './api';
import { copy } from './copies';
import { formatBytes } from './format';
import { missingName, safeText } from './describe';
import type { DeviceModel } from './model';

/** Says where a session works, below its user's home; quoted, so that Python's text of it is the same in JavaScript. */
const FOLDER =
  "__import__('urllib.parse').parse.quote(__import__('os').path.relpath(__import__('os').getcwd(), __import__('os').path.expanduser('~')))";

export interface INotebook {
  context: { path: string };
  sessionContext: {
    session: { kernel: Kernel.IKernelConnection | null } | null;
    iopubMessage: ISignal<unknown, KernelMessage.IMessage>;
  };
}

/** Most files that are offered at a time. */
const MOST = 4;
/** Without this option JupyterLab only lists a notification, and does not show it. */
const SHOWN = { autoClose: false as const };

/** Return the folder in which a session works, below its user's home; null: it works elsewhere, or does not say. */
export async function folderOf(kernel: Kernel.IKernelConnection): Promise<string | null> {
  const asked = { code: '', silent: true, store_history: false, user_expressions: { folder: FOLDER } };
  let { content } = await kernel.requestExecute(asked).done;
  if (content.status === 'aborted') {
    // behind a cell that failed
    ({ content } = await kernel.requestExecute(asked).done);
  }
  const told = (content as { user_expressions?: { folder?: { data?: Record<string, string> } } }).user_expressions;
  const folder = decodeURIComponent((told?.folder?.data?.['text/plain'] ?? "'..'").slice(1, -1));
  return folder.startsWith('..') ? null : folder;
}

/** Looks after each notebook that is opened. */
export class MissingFiles implements DocumentRegistry.WidgetExtension {
  /** Notifications of files that can be copied, by path. */
  private readonly _offered = new Map<string, string>();

  constructor(
    private readonly _model: DeviceModel,
    private readonly _api: Api,
    private readonly _onCopied: () => void,
    private readonly _trans: TranslationBundle
  ) {}

  createNew(widget: Widget): IDisposable {
    const notebook = widget as unknown as INotebook;
    const look = (_: unknown, message: KernelMessage.IMessage) => {
      if (message.header.msg_type === 'error') {
        const name = missingName(message.content as KernelMessage.IErrorMsg['content']);
        if (name !== null) {
          void this._offer(notebook, name).catch(error => Notification.error((error as Error).message, SHOWN));
        }
      }
    };
    notebook.sessionContext.iopubMessage.connect(look);
    return new DisposableDelegate(() => void notebook.sessionContext.iopubMessage.disconnect(look));
  }

  private async _offer(notebook: INotebook, name: string): Promise<void> {
    const kernel = notebook.sessionContext.session?.kernel;
    const { host, kernels } = this._model.view;
    const path = notebook.context.path.replace(/^RTC:/, '');
    if (!kernel || !kernels.has(kernel.id) || host?.files !== true || path.includes(':')) {
      return;
    }
    const found = await this._api.localFile(path, name);
    if (found === null) {
      return;
    }
    const trans = this._trans;
    const size = formatBytes(found.size, this._model.units);
    const words = trans.__('%1 (%2) is on your computer, not on %3.', safeText(found.path), size, host.name);
    const send = async () => {
      this._offered.delete(found.path);
      const waits =
        kernel.status === 'busy' &&
        Notification.emit(
          trans.__('%1 is copied when the running cell has ended.', safeText(name)),
          'in-progress',
          SHOWN
        );
      const folder = await folderOf(kernel);
      if (waits) {
        Notification.dismiss(waits);
      }
      if (folder === null) {
        throw new Error(
          trans.__('This notebook says no folder below your home on %1; copy the file yourself.', host.name)
        );
      }
      const wanted = { from: found.path, to: PathExt.join(folder, name), toHost: true, overwrite: false };
      if (await copy(this._api, wanted, trans)) {
        this._withdraw(found.path); // what a cell that came too early offered again
        this._onCopied();
      }
    };
    const callback = () => void send().catch(error => Notification.error((error as Error).message, SHOWN));
    for (const offered of this._offered.keys()) {
      if (offered === found.path || this._offered.size >= MOST) {
        this._withdraw(offered);
      }
    }
    const options = { ...SHOWN, actions: [{ label: trans.__('Copy It There'), callback }] };
    this._offered.set(found.path, Notification.warning(words, options));
  }

  private _withdraw(offered: string): void {
    const id = this._offered.get(offered);
    if (id !== undefined && this._offered.delete(offered)) {
      Notification.dismiss(id);
    }
  }
}
