/** Requests for room as notifications of JupyterLab, for who does not look at the panel. */

import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { DeviceModel } from './model';
import { requestsTo, requestWords } from './room';
import type { ISessionActions } from './sessionactions';

/** Show each request to the user once, for as long as it stands. */
export function notifyOfRequests(model: DeviceModel, actions: ISessionActions, trans: TranslationBundle): void {
  /** Ids of notifications, by request. */
  const shown = new Map<string, string>();
  model.changed.connect(() => {
    const { status, user } = model.view;
    const requests = status === null ? [] : requestsTo(user?.name ?? null, status);
    for (const [key, id] of shown) {
      if (!requests.some(request => request.key === key)) {
        Notification.dismiss(id);
        shown.delete(key);
      }
    }
    for (const request of requests) {
      if (!shown.has(request.key)) {
        const callback = () => void actions.offload(request.session);
        const options = { autoClose: false as const, actions: [{ label: trans.__('Offload'), callback }] };
        shown.set(request.key, Notification.info(requestWords(request, model.units, trans), options));
      }
    }
  });
}
