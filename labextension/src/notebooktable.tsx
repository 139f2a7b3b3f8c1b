/** All notebooks in one table: whose they are, what they do, what they have, and what can be done with them. */

import * as React from 'react';

import { Checkbox } from './checkbox';
import { colourStyle } from './colours';
import { lingeringWords, onHost, programsWords, safeText, sessionName, sessionState, tone } from './describe';
import { sessionFigures } from './figures';
import { formatBytes, percent, sentences, valueOf } from './format';
import type { INames } from './names';
import { inOrder, isFound, Order } from './notebookorder';
import { RowActions } from './rowactions';
import { askedWords } from './room';
import type { ISessionActions } from './sessionactions';
import type { ISession, IStatus } from './view';
import { lacksMemory, needWords, roomWords } from './words';

interface IProps extends INames {
  title: string;
  /** Said when there are no sessions. */
  empty: string;
  status: IStatus;
  /** The sessions that the table shows. */
  sessions: readonly ISession[];
  /** Null where nothing can be done with them. */
  actions: ISessionActions | null;
  /** Whether something can be done with those of others, too. */
  isAdmin?: boolean;
  /** The session of the notebook that the user looks at. */
  currentId: string | null;
  /** The colour of each user. */
  colours: ReadonlyMap<string, string>;
  /** Ids of the sessions that are selected; absent where none can be. */
  selected?: ReadonlySet<string>;
  onSelect?: (sessions: readonly ISession[], isSelected: boolean) => void;
  /** More of them are shown on request only. */
  most: number;
  /** Below the table. */
  children?: React.ReactNode;
}

/** With more sessions than so many one can search. */
const FEW = 8;

export function NotebookTable(props: IProps): React.ReactElement {
  const { title, empty, sessions, own, most, trans } = props;
  const [all, setAll] = React.useState(false);
  const [search, setSearch] = React.useState('');
  const [order, setOrder] = React.useState<Order>(null);
  const id = React.useId();
  const found = inOrder(
    sessions.filter(session => isFound(session, search, own, trans)),
    order,
    own,
    props.currentId
  );
  const shown = all || search.trim() !== '' ? found : found.slice(0, most);
  return (
    <section className="sk-Section sk-Notebooks" aria-labelledby={id}>
      <div className="sk-Notebooks-head">
        <h2 id={id} className="sk-Section-title">
          {title}
          {sessions.length > 0 && <span className="sk-Faint">{sessions.length}</span>}
        </h2>
        {sessions.length > FEW && (
          <input
            className="sk-Field"
            type="search"
            aria-label={trans.__('Search people and notebooks')}
            placeholder={trans.__('Search people and notebooks')}
            value={search}
            onChange={event => setSearch(event.target.value)}
          />
        )}
      </div>
      {shown.length === 0 ? (
        <p className="sk-Faint">{sessions.length === 0 ? empty : trans.__('None is called so.')}</p>
      ) : (
        // A narrow table is laid out as a grid, and would be none to screen readers without these roles.
        <table className="sk-Table" role="table" aria-labelledby={id}>
          <Head {...props} found={found} order={order} onOrder={setOrder} />
          <tbody role="rowgroup">
            {shown.map(session => (
              <Row
                key={session.id}
                session={session}
                capacityBytes={capacityFor(session, props.status)}
                actions={session.user === own || props.isAdmin === true ? props.actions : null}
                canGoTo={props.actions?.canGoTo(session) === true}
                canBringBack={session.lingering && props.actions?.canBringBack(session) === true}
                asked={askedWords(session, props.status.room_requests, trans)}
                room={roomWords(session, props.status.sessions, own, trans)}
                isCurrent={session.id === props.currentId}
                isSelected={props.selected === undefined ? null : props.selected.has(session.id)}
                onSelect={props.onSelect ?? null}
                colour={props.colours.get(session.user) ?? null}
                units={props.units}
                trans={trans}
                own={own}
              />
            ))}
          </tbody>
        </table>
      )}
      {found.length > shown.length || (all && found.length > most) ? (
        <button type="button" className="sk-Button" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? trans.__('Show fewer') : trans.__('Show all %1', found.length)}
        </button>
      ) : null}
      {props.children}
    </section>
  );
}

function capacityFor(session: ISession, status: IStatus): number {
  const device = status.devices.find(one => one.name === session.device) ?? status.device;
  return device.capacity_bytes;
}

interface IHeadProps extends IProps {
  found: readonly ISession[];
  order: Order;
  onOrder: (order: Order) => void;
}

function Head(props: IHeadProps): React.ReactElement {
  const { found, order, onOrder, selected, onSelect, trans } = props;
  const selectable = found.filter(session => !session.lingering);
  const count = selectable.filter(session => selected?.has(session.id)).length;
  const column = (key: NonNullable<Order>, label: string) => (
    <th role="columnheader" scope="col" className={`sk-Row-${key}`} aria-sort={order === key ? 'ascending' : 'none'}>
      <button
        type="button"
        className="sk-Table-sort"
        title={trans.__('Sort by this; again: mine first')}
        onClick={() => onOrder(order === key ? null : key)}
      >
        {label}
        <span aria-hidden="true">{order === key ? ' ↓' : ''}</span>
      </button>
    </th>
  );
  return (
    <thead role="rowgroup">
      <tr role="row">
        {selected !== undefined && (
          <th role="columnheader" scope="col" className="sk-Row-select">
            <Checkbox
              label={trans.__('Select all %1 notebooks', selectable.length)}
              isChecked={count > 0 && count === selectable.length}
              isPartial={count > 0 && count < selectable.length}
              isDisabled={selectable.length === 0}
              onChange={isSelected => onSelect?.(selectable, isSelected)}
            />
          </th>
        )}
        {column('person', trans.__('Person'))}
        {column('notebook', trans.__('Notebook'))}
        {column('state', trans.__('State'))}
        <th role="columnheader" scope="col" className="sk-Row-left">
          {trans.__('Time left')}
        </th>
        {column('memory', trans.__('Memory'))}
        <th role="columnheader" scope="col" className="sk-Row-actions">
          <span className="sk-Hidden">{trans.__('Actions')}</span>
        </th>
      </tr>
    </thead>
  );
}

interface IRowProps extends INames {
  session: ISession;
  /** Of its device. */
  capacityBytes: number;
  actions: ISessionActions | null;
  canGoTo: boolean;
  canBringBack: boolean;
  /** Whom it has asked for room, and who makes it, in words; null: nobody. */
  asked: string | null;
  room: string | null;
  isCurrent: boolean;
  /** Null where none can be selected. */
  isSelected: boolean | null;
  onSelect: ((sessions: readonly ISession[], isSelected: boolean) => void) | null;
  colour: string | null;
}

/** One session; drawn anew only when something about it has changed. */
const Row = React.memo(function Row(props: IRowProps): React.ReactElement {
  const { session, actions, isSelected, own, units, trans } = props;
  const isOwn = session.user === own;
  const name = nameFor(session, isOwn, props);
  const classes = ['sk-Row', isOwn && 'sk-mod-own', props.isCurrent && 'sk-mod-current'].filter(Boolean).join(' ');
  const left = sentences(sessionFigures, 'line', session, units, trans).join(' · ');
  const path = session.notebook === null ? undefined : safeText(session.notebook);
  return (
    <tr role="row" className={classes}>
      {isSelected !== null && (
        <td role="cell" className="sk-Row-select">
          {!session.lingering && (
            <Checkbox
              label={trans.__('Select %1 of %2', name, safeText(session.user))}
              isChecked={isSelected}
              onChange={checked => props.onSelect?.([session], checked)}
            />
          )}
        </td>
      )}
      <td role="cell" className="sk-Row-person">
        <span className="sk-Person">
          <span className={`sk-Dot sk-mod-${tone(session)}`} style={colourStyle(props.colour)} aria-hidden="true" />
          <span>{isOwn ? trans.__('you') : safeText(session.user)}</span>
        </span>
      </td>
      <th role="rowheader" scope="row" className="sk-Row-notebook" title={path}>
        {props.canGoTo && actions !== null ? (
          <button
            type="button"
            className="sk-Link"
            aria-label={trans.__('Go to notebook %1', name)}
            onClick={() => void actions.goTo(session)}
          >
            {name}
          </button>
        ) : (
          name
        )}
        {session.device !== null && <span className="sk-Row-note">{safeText(session.device)}</span>}
      </th>
      <td role="cell" className="sk-Row-state" colSpan={left === '' ? 2 : 1}>
        <State {...props} isOwn={isOwn} />
      </td>
      {left !== '' && (
        <td role="cell" className="sk-Row-left">
          {left}
        </td>
      )}
      <td role="cell" className="sk-Row-memory">
        <Memory {...props} />
      </td>
      <td role="cell" className="sk-Row-actions">
        {actions !== null && <RowActions session={session} name={name} actions={actions} trans={trans} />}
      </td>
    </tr>
  );
});

/** Return what to call a session; those of others may have names that are not this user's to know. */
function nameFor(session: ISession, isOwn: boolean, { trans }: INames): string {
  return session.notebook === null && !isOwn ? trans.__('a notebook') : sessionName(session);
}

/** What it does, and below that what somebody should know or can do about it. */
function State(props: IRowProps & { isOwn: boolean }): React.ReactElement {
  const { session, actions, asked, isOwn, units, trans } = props;
  const lingering = isOwn && !props.canBringBack ? lingeringWords(session, trans) : null;
  const note = isOwn && !session.lingering && session.offload_note !== null ? safeText(session.offload_note) : null;
  const need = needWords(session, units, trans);
  const programs = programsWords(session, units, trans);
  const notes = [need, props.room, asked, programs, lingering, note].filter(words => words !== null);
  return (
    <>
      {need === null ? sessionState(session, trans) : onHost(trans.__('waiting for memory'), session, trans)}
      {notes.length > 0 && <span className="sk-Row-note">{notes.join(' · ')}</span>}
      {actions !== null && session.lingering && props.canBringBack && (
        <button type="button" className="sk-Link sk-Row-offer" onClick={() => void actions.bringBack(session)}>
          {session.lingering_seconds === null
            ? trans.__('Bring back variables')
            : trans.__('Bring back variables (%1 min)', session.lingering_seconds / 60)}
        </button>
      )}
      {actions !== null && isOwn && asked === null && lacksMemory(session) && (
        <button type="button" className="sk-Link sk-Row-offer" onClick={() => void actions.askForRoom(session)}>
          {trans.__('Ask for room')}
        </button>
      )}
    </>
  );
}

function Memory(props: IRowProps): React.ReactElement {
  const { session, capacityBytes, colour, units, trans } = props;
  const bytes = valueOf(sessionFigures.memory, session) ?? 0;
  const away = session.offloaded_bytes;
  const kinds = sentences(sessionFigures, 'details', session, units, trans);
  const isAway = away > 0 && session.state === 'offloaded';
  const offloaded = trans.__('%1 offloaded; its next cell brings it back', formatBytes(away, units));
  const details = away > 0 ? [...kinds, offloaded] : kinds;
  return (
    <span className="sk-Memory" title={details.join('\n')}>
      <span className="sk-Memory-bar" aria-hidden="true">
        <span style={{ ...colourStyle(colour), width: `${percent(bytes, capacityBytes)}%` }} />
      </span>
      <span className="sk-Memory-amount">
        {formatBytes(isAway ? away : bytes, units)}
        {isAway && <span className="sk-Memory-away">{trans.__(' offloaded')}</span>}
      </span>
    </span>
  );
}
