/** The ends of sessions as notifications of JupyterLab: an idle notebook shows nothing of them until its next cell. */

import { Notification } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import { isShutDown, sessionName } from './describe';
import { EndWatcher, IEnd, PATIENCE } from './endwatcher';
import type { DeviceModel } from './model';
import type { ISession } from './view';

interface IEndActions {
  canBringBack(session: ISession): boolean;
  bringBack(session: ISession): Promise<void>;
  /** Whether the user has shut a session down in this page. */
  hasShutDown(session: ISession): boolean;
}

/** Tell of each session that somebody else has ended, until its kernel has another one. */
export function notifyOfEnds(
  model: DeviceModel,
  actions: IEndActions,
  kernels: Kernel.IManager,
  trans: TranslationBundle
): void {
  const watcher = new EndWatcher();
  /** Ids of notifications, by kernel. */
  const shown = new Map<string, string>();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const tell = async (end: IEnd) => {
    await kernels.refreshRunning();
    const kernel = [...kernels.running()].find(each => each.id === end.kernel);
    const stays = kernel?.execution_state === 'idle' || kernel?.execution_state === 'busy';
    if (!stays || hasSession(model, end.kernel) || actions.hasShutDown(end.session)) {
      return;
    }
    const callback = () => void actions.bringBack(end.session);
    const offers = actions.canBringBack(end.session) ? [{ label: trans.__('Bring back variables'), callback }] : [];
    const options = { autoClose: false as const, actions: offers };
    shown.set(end.kernel, Notification.warning(endWords(end.session, trans), options));
  };
  const follow = () => {
    clearTimeout(timer);
    for (const [kernel, id] of shown) {
      if (hasSession(model, kernel)) {
        Notification.dismiss(id);
        shown.delete(kernel);
      }
    }
    if (!model.isLive) {
      return;
    }
    watcher.follow(model.view, Date.now()).forEach(end => void tell(end));
    if (watcher.isWaiting) {
      timer = setTimeout(follow, PATIENCE);
    }
  };
  model.changed.connect(follow);
}

function hasSession(model: DeviceModel, kernel: string): boolean {
  const session = model.session(model.view.kernels.get(kernel));
  return session !== undefined && !isShutDown(session);
}

function endWords(session: ISession, trans: TranslationBundle): string {
  const name = sessionName(session);
  if (!session.lingering) {
    return trans.__('The session of %1 was ended; its variables are gone. Its next cell starts a new one.', name);
  }
  return session.lingeringMinutes === null
    ? trans.__('The session of %1 was shut down; its variables can still be brought back.', name)
    : trans.__(
        'The session of %1 was shut down; its variables can be brought back for %2 min.',
        name,
        session.lingeringMinutes
      );
}
