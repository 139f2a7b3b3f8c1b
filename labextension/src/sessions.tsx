/** Sessions as cards: what each has and does, and what can be done with it. */

import { closeIcon, stopIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Actions } from './actions';
import {
  lingeringWords,
  memoryByKind,
  memoryInUse,
  safeText,
  sessionName,
  sessionState,
  timeLeft,
  tone
} from './describe';
import { formatBytes } from './format';
import { offloadIcon } from './icons';
import type { INames } from './names';
import type { ISession } from './view';

interface IProps extends INames {
  title: string;
  /** Said when there are no sessions. */
  empty: string;
  sessions: readonly ISession[];
  actions: Actions;
  /** The session of the notebook that the user looks at. */
  currentId: string | null;
  showUser?: boolean;
}

export function SessionsSection(props: IProps): React.ReactElement {
  const { title, empty, sessions } = props;
  const id = React.useId();
  return (
    <section className="sk-Section" aria-labelledby={id}>
      <h2 id={id} className="sk-Section-title">
        {title}
        {sessions.length > 0 && <span className="sk-Faint">{sessions.length}</span>}
      </h2>
      {sessions.length === 0 ? (
        <p className="sk-Faint">{empty}</p>
      ) : (
        <ul className="sk-Sessions">
          {sessions.map(session => (
            <SessionCard
              key={session.id}
              session={session}
              actions={props.actions}
              canGoTo={props.actions.canGoTo(session)}
              isCurrent={session.id === props.currentId}
              showUser={props.showUser === true}
              units={props.units}
              trans={props.trans}
              own={props.own}
            />
          ))}
        </ul>
      )}
    </section>
  );
}

interface ICardProps extends INames {
  session: ISession;
  actions: Actions;
  canGoTo: boolean;
  isCurrent: boolean;
  showUser: boolean;
}

/** One session; drawn anew only when something about it has changed. */
const SessionCard = React.memo(function SessionCard(props: ICardProps): React.ReactElement {
  const { session, actions, canGoTo, isCurrent, showUser, units, trans } = props;
  const name = sessionName(session);
  const lingering = lingeringWords(session, trans);
  const details = [
    showUser && safeText(session.user),
    sessionState(session, trans),
    timeLeft(session, trans),
    session.device !== null && safeText(session.device)
  ].filter(Boolean);
  const path = session.notebook === null ? '' : safeText(session.notebook);
  return (
    <li className={isCurrent ? 'sk-Card sk-mod-current' : 'sk-Card'}>
      <div className="sk-Card-head">
        <span className={`sk-Dot sk-mod-${tone(session)}`} aria-hidden="true" />
        {canGoTo ? (
          <button
            type="button"
            className="sk-Card-name sk-mod-link"
            title={path}
            aria-label={trans.__('Go to notebook %1', name)}
            onClick={() => void actions.goTo(session)}
          >
            {name}
          </button>
        ) : (
          <span className="sk-Card-name" title={path}>
            {name}
          </span>
        )}
        <span className="sk-Card-actions">
          <button
            type="button"
            className="sk-IconButton"
            title={trans.__('Offload: free its device memory until its next cell')}
            aria-label={trans.__('Offload %1', name)}
            disabled={session.state !== 'idle'}
            onClick={() => void actions.offload(session)}
          >
            <offloadIcon.react tag="span" aria-hidden="true" />
          </button>
          <button
            type="button"
            className="sk-IconButton"
            title={trans.__('Interrupt what it runs')}
            aria-label={trans.__('Interrupt %1', name)}
            disabled={session.state === 'idle' || session.state === 'offloaded'}
            onClick={() => void actions.interrupt(session)}
          >
            <stopIcon.react tag="span" aria-hidden="true" />
          </button>
          <button
            type="button"
            className="sk-IconButton"
            title={trans.__('Shut down: its variables will be gone')}
            aria-label={trans.__('Shut down %1', name)}
            onClick={() => void actions.shutDown(session)}
          >
            <closeIcon.react tag="span" aria-hidden="true" />
          </button>
        </span>
      </div>
      <p className="sk-Card-state">
        <span>{details.join(' · ')}</span>
        <span title={memoryByKind(session, units, trans)}>{formatBytes(memoryInUse(session), units)}</span>
      </p>
      {lingering !== null && <p className="sk-Card-note">{lingering}</p>}
      {session.offloadedBytes > 0 && lingering === null && (
        <p className="sk-Card-note">
          {trans.__('%1 offloaded; its next cell brings it back', formatBytes(session.offloadedBytes, units))}
        </p>
      )}
      {session.offloadNote !== null && <p className="sk-Card-note">{safeText(session.offloadNote)}</p>}
    </li>
  );
});
