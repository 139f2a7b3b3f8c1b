/** Sessions as cards: what each has and does, and what can be done with it. */

import * as React from 'react';

import { Checkbox } from './checkbox';
import { colourStyle } from './colours';
import { lingeringWords, safeText, sessionName, sessionState, tone } from './describe';
import { sessionFigures } from './figures';
import { formatBytes, sentences } from './format';
import { CloseGlyph, InterruptGlyph, OffloadGlyph } from './glyphs';
import type { INames } from './names';
import type { ISessionActions } from './sessionactions';
import { askedWords } from './room';
import type { IRoomRequest, ISession } from './view';
import { lacksMemory, waitWords } from './words';

interface IProps extends INames {
  title: string;
  /** Said when there are no sessions. */
  empty: string;
  sessions: readonly ISession[];
  /** Null where nothing can be done with them. */
  actions: ISessionActions | null;
  /** The session of the notebook that the user looks at. */
  currentId: string | null;
  showUser?: boolean;
  /** The colour of each user. */
  colours: ReadonlyMap<string, string>;
  /** Requests for room, of which those of these sessions are told. */
  requests?: readonly IRoomRequest[];
  /** Ids of the sessions that are selected; null or absent where none can be. */
  selected?: ReadonlySet<string> | null;
  onSelect?: (sessions: readonly ISession[], isSelected: boolean) => void;
  /** Below the sessions. */
  children?: React.ReactNode;
}

/** More sessions of others than so many are shown on request only. */
const FEW = 5;

export function SessionsSection(props: IProps): React.ReactElement {
  const { title, empty, sessions } = props;
  const id = React.useId();
  return (
    <section className="sk-Section" aria-labelledby={id}>
      <h2 id={id} className="sk-Section-title">
        {title}
        {sessions.length > 0 && <span className="sk-Faint">{sessions.length}</span>}
      </h2>
      {sessions.length === 0 ? <p className="sk-Faint">{empty}</p> : <SessionList {...props} />}
      {props.children}
    </section>
  );
}

/** Sessions of others: the first few, the rest on request, with a search. */
export function OthersSection(props: IProps): React.ReactElement {
  const { sessions, trans } = props;
  const [all, setAll] = React.useState(false);
  const [search, setSearch] = React.useState('');
  const wanted = search.trim().toLowerCase();
  const found = sessions.filter(session =>
    `${session.user} ${sessionName(session)} ${sessionState(session, trans)}`.toLowerCase().includes(wanted)
  );
  const isLong = sessions.length > FEW;
  const id = React.useId();
  return (
    <section className="sk-Section" aria-labelledby={id}>
      <h2 id={id} className="sk-Section-title">
        {props.title}
        {sessions.length > 0 && <span className="sk-Faint">{sessions.length}</span>}
      </h2>
      {isLong && (
        <input
          className="sk-Field"
          type="search"
          aria-label={trans.__('Search users and notebooks')}
          placeholder={trans.__('Search users and notebooks')}
          value={search}
          onChange={event => setSearch(event.target.value)}
        />
      )}
      {found.length === 0 ? (
        <p className="sk-Faint">{sessions.length === 0 ? props.empty : trans.__('None is called so.')}</p>
      ) : (
        <SessionList {...props} sessions={all || wanted !== '' ? found : found.slice(0, FEW)} />
      )}
      {isLong && wanted === '' && (
        <button type="button" className="sk-Button" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? trans.__('Show fewer') : trans.__('Show all %1', sessions.length)}
        </button>
      )}
    </section>
  );
}

function SessionList(props: IProps): React.ReactElement {
  const { sessions } = props;
  return (
    <ul className="sk-Sessions">
      {sessions.map(session => (
        <SessionCard
          key={session.id}
          session={session}
          actions={props.actions}
          canGoTo={props.actions?.canGoTo(session) === true}
          canBringBack={session.lingering && props.actions?.canBringBack(session) === true}
          asked={askedWords(session, props.requests ?? [], props.trans)}
          isCurrent={session.id === props.currentId}
          isSelected={props.selected?.has(session.id) ?? false}
          onSelect={session.lingering || !props.selected ? null : (props.onSelect ?? null)}
          showUser={props.showUser === true}
          colour={props.showUser === true ? (props.colours.get(session.user) ?? null) : null}
          units={props.units}
          trans={props.trans}
          own={props.own}
        />
      ))}
    </ul>
  );
}

interface ICardProps extends INames {
  session: ISession;
  actions: ISessionActions | null;
  canGoTo: boolean;
  canBringBack: boolean;
  /** Whom it has asked for room, in words; null: nobody. */
  asked: string | null;
  isCurrent: boolean;
  isSelected: boolean;
  /** Null where it cannot be selected. */
  onSelect: ((sessions: readonly ISession[], isSelected: boolean) => void) | null;
  showUser: boolean;
  colour: string | null;
}

/** One session; drawn anew only when something about it has changed. */
const SessionCard = React.memo(function SessionCard(props: ICardProps): React.ReactElement {
  const { session, actions, canGoTo, isCurrent, showUser, units, trans } = props;
  const name = sessionName(session);
  const lingering = lingeringWords(session, trans);
  const figures = (place: 'line' | 'beside' | 'details') => sentences(sessionFigures, place, session, units, trans);
  const details = [
    showUser && safeText(session.user),
    session.needed_bytes === null ? sessionState(session, trans) : waitWords(session, props.own, units, trans),
    ...figures('line'),
    session.device !== null && safeText(session.device)
  ].filter(Boolean);
  const path = session.notebook === null ? '' : safeText(session.notebook);
  return (
    <li className={isCurrent ? 'sk-Card sk-mod-current' : 'sk-Card'}>
      <div className="sk-Card-head">
        {props.onSelect !== null && (
          <Checkbox
            label={trans.__('Select %1 of %2', name, safeText(session.user))}
            isChecked={props.isSelected}
            onChange={isSelected => props.onSelect?.([session], isSelected)}
          />
        )}
        {props.colour !== null && <span className="sk-Swatch" style={colourStyle(props.colour)} aria-hidden="true" />}
        <span className={`sk-Dot sk-mod-${tone(session)}`} aria-hidden="true" />
        {canGoTo && actions !== null ? (
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
        {actions !== null && (
          <span className="sk-Card-actions">
            <button
              type="button"
              className="sk-IconButton"
              title={trans.__('Offload: free its device memory until its next cell')}
              aria-label={trans.__('Offload %1', name)}
              disabled={session.state !== 'idle'}
              onClick={() => void actions.offload(session)}
            >
              <OffloadGlyph />
            </button>
            <button
              type="button"
              className="sk-IconButton"
              title={trans.__('Interrupt what it runs')}
              aria-label={trans.__('Interrupt %1', name)}
              disabled={session.state === 'idle' || session.state === 'offloaded'}
              onClick={() => void actions.interrupt(session)}
            >
              <InterruptGlyph />
            </button>
            <button
              type="button"
              className="sk-IconButton"
              title={session.lingering ? trans.__('End it for good') : trans.__('Shut down')}
              aria-label={session.lingering ? trans.__('End %1 for good', name) : trans.__('Shut down %1', name)}
              onClick={() => void actions.shutDown(session)}
            >
              <CloseGlyph />
            </button>
          </span>
        )}
      </div>
      <p className="sk-Card-state">
        <span>{details.join(' · ')}</span>
        <span title={figures('details').join(', ')}>{figures('beside').join(' · ')}</span>
      </p>
      {lingering !== null && !props.canBringBack && <p className="sk-Card-note">{lingering}</p>}
      {lingering !== null && props.canBringBack && (
        <p className="sk-Card-offer">
          <button type="button" className="sk-Button" onClick={() => void actions?.bringBack(session)}>
            {session.lingering_seconds === null
              ? trans.__('Bring back variables')
              : trans.__('Bring back variables (%1 min)', session.lingering_seconds / 60)}
          </button>
        </p>
      )}
      {session.user === props.own && actions !== null && lacksMemory(session) && (
        <p className="sk-Card-offer">
          {props.asked === null ? (
            <button type="button" className="sk-Button" onClick={() => void actions.askForRoom(session)}>
              {trans.__('Ask for room')}
            </button>
          ) : (
            props.asked
          )}
        </p>
      )}
      {session.offloaded_bytes > 0 && lingering === null && (
        <p className="sk-Card-note">
          {trans.__('%1 offloaded; its next cell brings it back', formatBytes(session.offloaded_bytes, units))}
        </p>
      )}
      {session.offload_note !== null && lingering === null && (
        <p className="sk-Card-note">{safeText(session.offload_note)}</p>
      )}
    </li>
  );
});
