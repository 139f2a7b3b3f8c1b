/** Requests for room: who waits for the memory that an idle notebook of this user holds. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { safeText, sessionName } from './describe';
import { formatBytes, Units } from './format';
import type { INames } from './names';
import type { ISessionActions } from './sessionactions';
import type { IRoomRequest, ISession, IStatus } from './view';

/** A request to this user, and the session that is asked. */
export interface IOwnRequest {
  key: string;
  request: IRoomRequest;
  session: ISession;
}

/** Return the requests to a user. */
export function requestsTo(own: string | null, status: IStatus): IOwnRequest[] {
  const found: IOwnRequest[] = [];
  for (const request of status.room_requests) {
    const session = status.sessions.find(one => one.id === request.session);
    if (request.owner === own && session !== undefined) {
      found.push({ key: `${request.session} ${request.asking_session}`, request, session });
    }
  }
  return found;
}

/** Return whom a session has asked, in words; null: nobody. */
export function askedWords(
  session: ISession,
  requests: readonly IRoomRequest[],
  trans: TranslationBundle
): string | null {
  const owners = new Set(
    requests.filter(request => request.asking_session === session.id).map(request => safeText(request.owner))
  );
  return owners.size === 0 ? null : trans.__('Asked %1 to make room', [...owners].join(', '));
}

/** Return a request in one sentence. */
export function requestWords(own: IOwnRequest, units: Units, trans: TranslationBundle): string {
  return trans.__(
    '%1 waits for memory. Your idle notebook %2 holds %3.',
    safeText(own.request.asked_by),
    sessionName(own.session),
    formatBytes(own.session.persistent_bytes, units)
  );
}

interface IProps extends INames {
  status: IStatus;
  actions: ISessionActions;
}

export function RoomRequests(props: IProps): React.ReactElement {
  const { status, actions, own, units, trans } = props;
  const [dismissed, setDismissed] = React.useState<ReadonlySet<string>>(new Set());
  const shown = requestsTo(own, status).filter(one => !dismissed.has(one.key));
  return (
    <>
      {shown.map(one => (
        <div key={one.key} className="sk-Notice sk-mod-demand">
          {requestWords(one, units, trans)}{' '}
          <span className="sk-Notice-buttons">
            <button type="button" className="sk-Button" onClick={() => void actions.offload(one.session)}>
              {trans.__('Offload %1', sessionName(one.session))}
            </button>
            <button type="button" className="sk-Button" onClick={() => setDismissed(new Set([...dismissed, one.key]))}>
              {trans.__('Not now')}
            </button>
          </span>
        </div>
      ))}
    </>
  );
}
