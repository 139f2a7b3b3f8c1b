/** What a user can do with a session, from the panel and from the command palette. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { Session } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { Api } from './api';
import { isMeant } from './copies';
import { sessionName } from './describe';
import { reasonOf } from './limits';
import type { DeviceModel } from './model';
import { ISessionActions, shutDownQuestion, successorOf } from './sessionactions';
import type { ISession } from './view';

/** Return the id of the kernel that a widget's code runs in; null where it has none. */
export function kernelOfWidget(widget: Widget | null): string | null {
  return contextOf(widget)?.session?.kernel?.id ?? null;
}

interface IContext {
  session?: Session.ISessionConnection | null;
  ready?: Promise<void>;
  prevKernelName?: string;
  changeKernel?: (options: { name: string }) => Promise<unknown>;
}

const KERNEL_NAME = 'shared-gpu';
/** Milliseconds until a new kernel is known to the gateway. */
const KERNEL_PATIENCE = 60_000;
/** Milliseconds after which the end of a session that was shut down here is somebody else's doing. */
const OWN_END = 60_000;
/** Milliseconds between two looks whether it is. */
const SUCCESSOR_PAUSE = 300;

/** Whether a path of the server's machine is that of a path below the server's root, which may have a drive's name. */
function isPathOf(path: string, local: string): boolean {
  const plain = local.replace(/^[^/]*:/, '');
  return path === local || path === plain || path.endsWith(`/${plain}`);
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

  /** End the programs that a session started and that use the device. */
  async endPrograms(session: ISession): Promise<void> {
    const name = sessionName(session);
    await this._attempt(
      () => this.api.endPrograms(session.id),
      this._trans.__('Programs of %1 could not be ended', name)
    );
  }

  /** Interrupt what a session runs. */
  async interrupt(session: ISession): Promise<void> {
    const name = sessionName(session);
    await this._attempt(() => this.api.interrupt(session.id), this._trans.__('%1 could not be interrupted', name));
  }

  /** Ask the owners of idle memory to make room for a waiting session. */
  async askForRoom(session: ISession): Promise<void> {
    await this._attempt(() => this.api.askForRoom(session.id), this._trans.__('Nobody was asked'));
  }

  /** Whether a session that was shut down is this user's, and of a notebook. */
  canBringBack(session: ISession): boolean {
    return session.lingering && session.notebook !== null && session.user === this._model.view.user?.name;
  }

  /** Bring back a session that was shut down: into its notebook, which is opened and gets a kernel if it has none. */
  async bringBack(session: ISession): Promise<void> {
    if (this._returning.has(session.id)) {
      return;
    }
    this._returning.add(session.id);
    const failure = this._trans.__('%1 could not be brought back', sessionName(session));
    await this._attempt(async () => {
      const successor = await this._makeSuccessor(session);
      if (successor !== null) {
        await this.api.bringBack(successor.id);
      }
    }, failure);
    this._returning.delete(session.id);
  }

  /** Shut a session down, or end one that was shut down, if the user means it. */
  async shutDown(session: ISession): Promise<void> {
    const name = sessionName(session);
    const question = shutDownQuestion(session, await this.api.linger(session.user), this._trans);
    if (!(await isMeant(question.title, question.text, question.agree))) {
      return;
    }
    this._shutDown.set(session.id, Date.now());
    await this._attempt(
      async () => {
        try {
          await this.api.shutDown(session.id);
        } catch (error) {
          this._shutDown.delete(session.id);
          throw error;
        }
      },
      this._trans.__('%1 could not be shut down', name)
    );
    await this._app.serviceManager.sessions.refreshRunning();
  }

  /** Remove the kernels, the gateway's address and the token from this Jupyter, if the user means it. */
  async disconnect(): Promise<void> {
    const trans = this._trans;
    const title = trans.__('Disconnect');
    const body = trans.__('The kernel, the address and your token are removed. Your sessions continue.');
    if (await isMeant(title, body, title)) {
      await this._attempt(async () => {
        await this.api.disconnect();
        await this._app.serviceManager.kernelspecs.refreshSpecs();
      }, title);
    }
  }

  /** Whether the user has shut a session down in this page just now. */
  hasShutDown(session: ISession): boolean {
    return Date.now() - (this._shutDown.get(session.id) ?? -Infinity) < OWN_END;
  }

  /** Whether a kernel's notebook is open in this page, and the kernel is neither ending nor restarting. */
  isOpen(kernel: string): boolean {
    const widget = [...this._app.shell.widgets('main')].find(each => kernelOfWidget(each) === kernel);
    const status = contextOf(widget ?? null)?.session?.kernel?.status;
    return status === 'idle' || status === 'busy' || status === 'unknown'; // unknown: its websocket is away
  }

  private _successor(session: ISession): ISession | undefined {
    return successorOf(session, this._model.view.status?.sessions ?? []);
  }

  /**
   * Return the session of a session's notebook that it can take the place of; one is started if there is none.
   *
   * Null: it is back already.
   */
  private async _makeSuccessor(session: ISession): Promise<ISession | null> {
    const deadline = Date.now() + KERNEL_PATIENCE;
    let context: IContext | null = null;
    let isAsked = false;
    for (;;) {
      if (this._model.session(session.id)?.lingering === false) {
        return null;
      }
      const successor = this._successor(session);
      if (successor !== undefined) {
        return successor;
      }
      if (Date.now() > deadline) {
        throw new Error(this._trans.__('its notebook got no kernel; start one there, then try again.'));
      }
      context ??= await this._openNotebook(session);
      // Asked again and again: the kernel that was shut down may need a while to end, and there may be a later one.
      await this._app.serviceManager.sessions.refreshRunning();
      const kernel = context?.session?.kernel;
      if (!kernel) {
        await context?.changeKernel?.({ name: context.prevKernelName || KERNEL_NAME });
      } else if (!isAsked && !this.hasShutDown(session)) {
        // One whose session somebody else has ended gets another one with its next cell; all others do nothing for it.
        // One that was shut down here is about to end, and would take its next session with it.
        isAsked = true;
        kernel.requestExecute({ code: '', store_history: false }, true).done.catch(() => undefined);
      }
      await new Promise(resolve => setTimeout(resolve, SUCCESSOR_PAUSE));
    }
  }

  /** Show a session's notebook. */
  private async _openNotebook(session: ISession): Promise<IContext | null> {
    const path = session.notebook ?? '';
    const known = this._localName(path);
    const isOpen = (widget: Widget) => {
      const own = contextOf(widget)?.session?.path ?? (widget as { context?: { path?: string } }).context?.path;
      return own !== undefined && own !== '' && (known === null ? isPathOf(path, own) : own === known);
    };
    let widget = [...this._app.shell.widgets('main')].find(isOpen);
    if (widget === undefined) {
      const local = await this._localPath(path);
      widget = (await this._app.commands.execute('docmanager:open', { path: local })) as Widget;
      await contextOf(widget)?.ready; // a notebook that is opened mostly starts a kernel by itself
    }
    this._app.shell.activateById(widget.id);
    return contextOf(widget);
  }

  /** Return where this Jupyter server has the notebook with a path of its machine. */
  private async _localPath(path: string): Promise<string> {
    const local = this._localName(path) ?? '';
    const isThere = this._app.serviceManager.contents.get(local, { content: false }).then(
      () => local !== '',
      () => false
    );
    if (!(await isThere)) {
      throw new Error(this._trans.__('open its notebook first.'));
    }
    return local;
  }

  /** Return the name that the notebook with a path of this server's machine would have; null: it is not below its root. */
  private _localName(path: string): string | null {
    const root = PageConfig.getOption('serverRoot').replace(/^~/, '');
    const at = path.indexOf(`${root}/`);
    return at < 0 ? null : path.slice(at + root.length + 1);
  }

  /** Try it; tell the user why it did not work. */
  private async _attempt(work: () => Promise<void>, failure: string): Promise<void> {
    try {
      await work();
    } catch (error) {
      const reason = reasonOf(error);
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

  /** When each session was shut down in this page. */
  private _shutDown = new Map<string, number>();
  /** Ids of the sessions that are being brought back. */
  private _returning = new Set<string>();
}
