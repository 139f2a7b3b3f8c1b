/** What a user can do with a session, from the panel and from the command palette. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { Session } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { Api } from './api';
import { sessionName } from './describe';
import type { DeviceModel } from './model';
import type { ISessionActions } from './sessionactions';
import type { ISession } from './view';

/** Return the id of the kernel that a widget's code runs in; null where it has none. */
export function kernelOfWidget(widget: Widget | null): string | null {
  return contextOf(widget)?.session?.kernel?.id ?? null;
}

interface IContext {
  session?: Session.ISessionConnection | null;
}

/** Notebooks, consoles and whatever else runs code have a session context. */
export function contextOf(widget: Widget | null): IContext | null {
  return (widget as { sessionContext?: IContext } | null)?.sessionContext ?? null;
}

export class Actions implements ISessionActions {
  constructor(
    private readonly _app: JupyterFrontEnd,
    readonly api: Api,
    private readonly _model: DeviceModel,
    private readonly _trans: TranslationBundle
  ) {}

  /** Whether a session's notebook can be shown here. */
  canGoTo(session: ISession): boolean {
    return this._widget(session) !== undefined || this._path(session) !== undefined;
  }

  /** Show a session's notebook. */
  async goTo(session: ISession): Promise<void> {
    const widget = this._widget(session);
    if (widget !== undefined) {
      this._app.shell.activateById(widget.id);
      return;
    }
    const path = this._path(session);
    if (path !== undefined) {
      await this._app.commands.execute('docmanager:open', { path });
    }
  }

  /** Move a session's memory away until its next cell. */
  async offload(session: ISession): Promise<void> {
    const name = sessionName(session);
    await this._attempt(() => this.api.offload(session.id), this._trans.__('%1 could not be offloaded', name));
  }

  /** Interrupt what a session runs. */
  async interrupt(session: ISession): Promise<void> {
    const name = sessionName(session);
    await this._attempt(() => this.api.interrupt(session.id), this._trans.__('%1 could not be interrupted', name));
  }

  /** End a session, if the user means it. */
  async shutDown(session: ISession): Promise<void> {
    const name = sessionName(session);
    const answer = await showDialog({
      title: this._trans.__('Shut down %1?', name),
      body: this._trans.__('Its variables and tensors will be gone. To free device memory only, offload it instead.'),
      buttons: [
        Dialog.cancelButton({ label: this._trans.__('Cancel') }),
        Dialog.warnButton({ label: this._trans.__('Shut Down') })
      ]
    });
    if (!answer.button.accept) {
      return;
    }
    await this._attempt(() => this.api.shutDown(session.id), this._trans.__('%1 could not be shut down', name));
    await this._app.serviceManager.sessions.refreshRunning();
  }

  /** Try it; tell the user why it did not work. */
  private async _attempt(work: () => Promise<void>, failure: string): Promise<void> {
    try {
      await work();
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      Notification.error(`${failure}: ${reason}`, { autoClose: 10000 });
    }
  }

  private _widget(session: ISession): Widget | undefined {
    const kernel = this._model.kernelOf(session.id);
    if (kernel === undefined) {
      return undefined;
    }
    return [...this._app.shell.widgets('main')].find(widget => kernelOfWidget(widget) === kernel);
  }

  private _path(session: ISession): string | undefined {
    const kernel = this._model.kernelOf(session.id);
    if (kernel === undefined) {
      return undefined;
    }
    for (const running of this._app.serviceManager.sessions.running()) {
      if (running.kernel?.id === kernel && running.type === 'notebook') {
        return running.path;
      }
    }
    return undefined;
  }
}
