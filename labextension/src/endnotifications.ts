/** The ends of sessions as notifications of JupyterLab: an idle notebook shows nothing of them until its next cell. */

import { Notification } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import { isShutDown, sessionName } from './describe';
import { EndWatcher, IEnd, PATIENCE } from './endwatcher';
import type { DeviceModel } from './model';
import type { ISession } from './view';

/** States of a kernel that neither ends nor restarts. */
const STAYS = ['idle', 'busy'];

interface IEndActions {
  canBringBack(session: ISession): boolean;
  bringBack(session: ISession): Promise<void>;
  /** Whether the user has shut a session down in this page. */
  hasShutDown(session: ISession): boolean;
  /** Whether a kernel's notebook is open in this page, and the kernel is neither ending nor restarting. */
  isOpen(kernel: string): boolean;
}

/** Tell of each session that somebody else has ended, until its kernel has another one. */
export function notifyOfEnds(
  model: DeviceModel,
  actions: IEndActions,
  kernels: Kernel.IManager,
  trans: TranslationBundle
): void {
  const watcher = new EndWatcher();
  const shown: Array<IEnd & { notification: string }> = [];
  let timer: ReturnType<typeof setTimeout> | undefined;
  const tell = async ({ kernel, session }: IEnd) => {
    await kernels.refreshRunning().catch(() => undefined); // else what was known is as good as it gets
    const isThere = [...kernels.running()].some(
      each => each.id === kernel && STAYS.includes(each.execution_state ?? '')
    );
    if (!isThere || !actions.isOpen(kernel) || hasSession(model, kernel) || actions.hasShutDown(session)) {
      return;
    }
    const callback = () => void actions.bringBack(session);
    const offers = actions.canBringBack(session) ? [{ label: trans.__('Bring back variables'), callback }] : [];
    const options = { autoClose: false as const, actions: offers };
    shown.push({ kernel, session, notification: Notification.warning(endWords(session, trans), options) });
  };
  /** Whether a notification says what is no more: that a kernel has no session, or that variables can come back. */
  const isOver = ({ kernel, session }: IEnd) =>
    hasSession(model, kernel) ||
    !actions.isOpen(kernel) ||
    (session.lingering && model.session(session.id)?.lingering !== true);
  const follow = () => {
    clearTimeout(timer);
    if (model.problem !== null) {
      return;
    }
    const ends = watcher.follow(model.view, Date.now());
    for (const over of shown.filter(isOver)) {
      Notification.dismiss(over.notification);
      shown.splice(shown.indexOf(over), 1);
    }
    ends.forEach(end => void tell(end));
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
    return trans.__('The session of %1 was ended; its variables are gone. Its next cell says why.', name);
  }
  return session.lingering_seconds === null
    ? trans.__('The session of %1 was shut down; its variables can still be brought back.', name)
    : trans.__(
        'The session of %1 was shut down; its variables can be brought back for %2 min.',
        name,
        session.lingering_seconds / 60
      );
}
