/** Notifications of the browser: it is your turn, or your training has ended. Off until somebody switches them on. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { sessionName } from './describe';
import type { DeviceModel } from './model';
import { ITurnNews, TurnWatcher } from './turnwatcher';

/** Whether the browser shows notifications of this page; `unsupported`: it has none, or only under https. */
export type NotifyPermission = NotificationPermission | 'unsupported';

export function notifyPermission(): NotifyPermission {
  return 'Notification' in window && window.isSecureContext ? Notification.permission : 'unsupported';
}

/** Let the browser ask the user, unless it is known; browsers want this to be called in a click. */
export async function askToNotify(): Promise<NotifyPermission> {
  const known = notifyPermission();
  return known === 'default' ? Notification.requestPermission() : known;
}

/** Notify the user while the page is out of sight, for as long as the page is there. */
export function notifyOfTurns(model: DeviceModel, trans: TranslationBundle): void {
  const watcher = new TurnWatcher();
  model.changed.connect(() => {
    const { status, user } = model.view;
    if (status === null || !model.isLive) {
      return;
    }
    const news = watcher.follow(status, user?.name ?? null, Date.now());
    if (model.notifies && document.hidden && notifyPermission() === 'granted') {
      news.forEach(each => notify(each, trans));
    }
  });
}

function notify(news: ITurnNews, trans: TranslationBundle): void {
  const name = sessionName(news.session);
  const time = minutesAndSeconds(news.milliseconds, trans);
  const [title, body] =
    news.kind === 'turn'
      ? [trans.__('It is your turn'), trans.__('%1 runs now, after a wait of %2.', name, time)]
      : [trans.__('%1 has finished', name), trans.__('Its cell ended after %1.', time)];
  // Several pages of one user replace each other's notifications.
  const shown = new Notification(title, { body, tag: `sharedkernel ${news.session.id}` });
  shown.onclick = () => {
    window.focus();
    shown.close();
  };
}

function minutesAndSeconds(milliseconds: number, trans: TranslationBundle): string {
  const seconds = Math.round(milliseconds / 1000);
  return seconds < 90 ? trans.__('%1 s', seconds) : trans.__('%1 min', Math.round(seconds / 60));
}
