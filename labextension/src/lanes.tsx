/** The lanes, for experts: who runs in each, and who is next. */

import * as React from 'react';

import { holderName, safeText } from './describe';
import { formatBytes } from './format';
import type { INames } from './names';
import type { ILane, ISession, IStatus } from './view';

interface IProps extends INames {
  status: IStatus;
}

export function Lanes(props: IProps): React.ReactElement {
  const { status } = props;
  const sessions = new Map(status.sessions.map(session => [session.id, session]));
  return (
    <>
      {status.lanes.map(lane => (
        <Lane key={lane.id} lane={lane} sessions={sessions} {...props} />
      ))}
    </>
  );
}

interface ILaneProps extends INames {
  lane: ILane;
  sessions: ReadonlyMap<string, ISession>;
}

function Lane(props: ILaneProps): React.ReactElement {
  const { lane, sessions, units, trans, own } = props;
  const number = lane.number ?? lane.id;
  const holder = lane.holder === null ? undefined : sessions.get(lane.holder);
  return (
    <div className="sk-Lane">
      <h3 className="sk-Lane-title">
        {lane.device === null ? trans.__('Lane %1', number) : trans.__('%1, lane %2', safeText(lane.device), number)}
        <span className="sk-Faint">{formatBytes(lane.size_bytes, units)}</span>
      </h3>
      <p className={holder !== undefined && holder.user === own ? 'sk-Line sk-mod-own' : 'sk-Line'}>
        <span className={`sk-Dot sk-mod-${lane.holder === null ? 'idle' : 'running'}`} aria-hidden="true" />
        <span>{lane.holder === null ? trans.__('free') : trans.__('%1: running', holderName(holder, own, trans))}</span>
      </p>
      {lane.queue.length > 0 && (
        <ol className="sk-Queue" aria-label={trans.__('Next in line')}>
          {lane.queue.map(id => {
            const session = sessions.get(id);
            return (
              <li key={id} className={session?.user === own ? 'sk-mod-own' : ''}>
                {holderName(session, own, trans)}
              </li>
            );
          })}
        </ol>
      )}
    </div>
  );
}
