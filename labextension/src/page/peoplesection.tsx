/** Everybody's use, quota and share, for admins. */

import * as React from 'react';

import { Checkbox } from '../checkbox';
import { safeText } from '../describe';
import { colourStyle } from '../colours';
import { formatBytes, percent, Units } from '../format';
import { type ILimits, reasonOf } from '../limits';
import { changed, Field } from '../quotas';
import type { ISession, IStatus } from '../view';
import { level } from '../words';
import type { PageApi } from './api';
import { english as trans } from './english';
import { IPerson, Order, PAGE_SIZE, peopleOf, pick } from './people';
import { isSelectable } from './selection';

interface IProps {
  api: PageApi;
  status: IStatus;
  /** How often this page has changed people or classes. */
  edits: number;
  units: Units;
  colours: ReadonlyMap<string, string>;
  /** Ids of the sessions that are selected. */
  selected: ReadonlySet<string>;
  onSelect: (sessions: readonly ISession[], isSelected: boolean) => void;
}

export function PeopleSection(props: IProps): React.ReactElement {
  const { api, status, edits, units, colours, selected, onSelect } = props;
  const [limits, setLimits] = React.useState<ReadonlyMap<string, ILimits>>(new Map());
  const [problem, setProblem] = React.useState<string | null>(null);
  const [told, setTold] = React.useState<ITold | null>(null);
  const [search, setSearch] = React.useState('');
  const [order, setOrder] = React.useState<Order>('name');
  const [page, setPage] = React.useState(0);
  const run = React.useCallback(async (work: Promise<ReadonlyMap<string, ILimits>>) => {
    try {
      setLimits(await work);
      setProblem(null);
    } catch (error) {
      setProblem(reasonOf(error));
    }
  }, []);
  const change = async ({ name, limits: before }: IPerson, kind: Kind, text: string) => {
    const undo = () =>
      send(
        name,
        before?.byHand.includes(kind) ? api.changeLimits(name, { [kind]: before[kind] }) : api.resetLimit(name, kind),
        null
      );
    await send(name, api.changeLimits(name, changed(kind, text)), undo);
  };
  const send = async (name: string, work: Promise<ReadonlyMap<string, ILimits>>, undo: ITold['undo']) => {
    try {
      setLimits(await work);
      setTold({ name, undo, problem: null });
    } catch (error) {
      setTold({ name, undo: null, problem: reasonOf(error) });
    }
  };
  // Quotas are read again when they, or the people, change.
  const version = status.users.map(user => `${user.name} ${user.quota_bytes} ${user.share}`).join('\n');
  React.useEffect(() => {
    void run(api.limits());
  }, [api, run, version, edits]);
  const people = pick(peopleOf(status, limits), search, order);
  const pages = Math.max(1, Math.ceil(people.length / PAGE_SIZE));
  const shown = Math.min(page, pages - 1);
  const byUser = new Map<string, ISession[]>();
  for (const session of status.sessions.filter(isSelectable)) {
    byUser.set(session.user, [...(byUser.get(session.user) ?? []), session]);
  }
  const sessionsOf = (person: IPerson) => byUser.get(person.name) ?? [];
  return (
    <section className="sk-Section sk-People" aria-labelledby="sk-people-title">
      <h2 id="sk-people-title" className="sk-Section-title">
        {trans.__('People')}
        <span className="sk-Faint">{people.length}</span>
      </h2>
      <div className="sk-People-tools">
        <input
          className="sk-Field"
          type="search"
          aria-label={trans.__('Search people')}
          placeholder={trans.__('Search people')}
          value={search}
          onChange={event => {
            setSearch(event.target.value);
            setPage(0);
          }}
        />
        <label>
          {trans.__('Sort by')}{' '}
          <select className="sk-Field" value={order} onChange={event => setOrder(event.target.value as Order)}>
            <option value="name">{trans.__('name')}</option>
            <option value="memory">{trans.__('memory')}</option>
            <option value="activity">{trans.__('last activity')}</option>
          </select>
        </label>
      </div>
      <div role="alert">{problem !== null && <p className="sk-Notice sk-mod-problem">{safeText(problem)}</p>}</div>
      <table className="sk-People-table">
        <thead>
          <tr>
            <th scope="col">
              <SelectBox
                label={trans.__('Select the notebooks of all %1 people', people.length)}
                sessions={people.flatMap(sessionsOf)}
                selected={selected}
                onSelect={onSelect}
              />{' '}
              {trans.__('Person')}
            </th>
            <th scope="col">{trans.__('In use')}</th>
            <th scope="col">{trans.__('Last activity')}</th>
            <th scope="col" className="sk-People-quota">
              {trans.__('Quota')}
            </th>
            <th scope="col">{trans.__('Share')}</th>
          </tr>
        </thead>
        <tbody>
          {people.slice(shown * PAGE_SIZE, (shown + 1) * PAGE_SIZE).map(person => (
            <Row
              key={person.name}
              person={person}
              colour={colours.get(person.name)}
              units={units}
              sessions={sessionsOf(person)}
              selected={selected}
              onSelect={onSelect}
              told={told?.name === person.name ? told : null}
              onChange={(kind, text) => void change(person, kind, text)}
            />
          ))}
        </tbody>
      </table>
      {pages > 1 && (
        <nav className="sk-Pages" aria-label={trans.__('Pages of people')}>
          <button type="button" className="sk-Button" disabled={shown === 0} onClick={() => setPage(shown - 1)}>
            {trans.__('Previous')}
          </button>
          <span>{trans.__('%1 of %2', shown + 1, pages)}</span>
          <button type="button" className="sk-Button" disabled={shown === pages - 1} onClick={() => setPage(shown + 1)}>
            {trans.__('Next page')}
          </button>
        </nav>
      )}
      <p className="sk-Hint">
        {trans.__('Empty: no limit. Changes last until the gateway reads its configuration again.')}
      </p>
    </section>
  );
}

/** A limit that can be changed here. */
type Kind = 'memory' | 'share';

/** The outcome of the last change. */
interface ITold {
  name: string;
  /** Takes it back; null: there is nothing to take back. */
  undo: (() => Promise<void>) | null;
  /** Why it was refused; null: it was not. */
  problem: string | null;
}

interface ISelectProps {
  sessions: readonly ISession[];
  selected: ReadonlySet<string>;
  onSelect: (sessions: readonly ISession[], isSelected: boolean) => void;
}

/** Selects several sessions at once. */
function SelectBox(props: ISelectProps & { label: string }): React.ReactElement {
  const { label, sessions, selected, onSelect } = props;
  const count = sessions.filter(session => selected.has(session.id)).length;
  return (
    <Checkbox
      label={label}
      isChecked={count > 0 && count === sessions.length}
      isPartial={count > 0 && count < sessions.length}
      isDisabled={sessions.length === 0}
      onChange={isSelected => onSelect(sessions, isSelected)}
    />
  );
}

interface IRowProps extends ISelectProps {
  person: IPerson;
  colour: string | undefined;
  units: Units;
  told: ITold | null;
  onChange: (kind: Kind, text: string) => void;
}

function Row(props: IRowProps): React.ReactElement {
  const { person, colour, units, told, onChange } = props;
  const { limits } = person;
  const who = safeText(person.name);
  const { chargedBytes, quotaBytes } = person;
  const fullness =
    quotaBytes === null ? 'normal' : chargedBytes > quotaBytes ? 'over' : level(chargedBytes, quotaBytes);
  return (
    <tr>
      <th scope="row">
        <SelectBox
          label={trans.__('Select the notebooks of %1', who)}
          sessions={props.sessions}
          selected={props.selected}
          onSelect={props.onSelect}
        />{' '}
        <span className="sk-Swatch" style={colourStyle(colour)} aria-hidden="true" /> {who}
      </th>
      <td>{formatBytes(person.usedBytes, units)}</td>
      <td>{activityWords(person)}</td>
      <td className="sk-People-quota">
        {person.quotaBytes !== null && (
          <span className={`sk-QuotaUse sk-mod-${fullness}`}>
            <span className="sk-Memory-bar" aria-hidden="true">
              <span style={{ ...colourStyle(colour), width: `${percent(person.chargedBytes, person.quotaBytes)}%` }} />
            </span>{' '}
            {trans.__('%1 of', formatBytes(person.chargedBytes, units))}{' '}
          </span>
        )}
        <Field
          label={trans.__('Quota of %1, such as 8 GiB or 25%', who)}
          value={limits?.memory}
          onChange={text => onChange('memory', text)}
        />
        {told !== null && (
          <span className="sk-People-told" role={told.problem === null ? 'status' : 'alert'}>
            {told.problem === null ? trans.__('Saved') : safeText(told.problem)}{' '}
            {told.undo !== null && (
              <button
                type="button"
                className="sk-Link"
                aria-label={trans.__('Undo the change for %1', who)}
                onClick={() => void told.undo?.()}
              >
                {trans.__('Undo')}
              </button>
            )}
          </span>
        )}
      </td>
      <td>
        <Field
          label={trans.__('Share of %1, 1 is usual', who)}
          value={limits?.share}
          onChange={text => onChange('share', text)}
        />
      </td>
    </tr>
  );
}

function activityWords(person: IPerson): string {
  if (person.idleMinutes === null) {
    return trans.__('no notebook');
  }
  const notebooks = person.sessions === 1 ? trans.__('1 notebook') : trans.__('%1 notebooks', person.sessions);
  const minutes = person.idleMinutes;
  const ago =
    minutes < 1
      ? trans.__('now')
      : minutes < 60
        ? trans.__('%1 min ago', minutes)
        : trans.__('%1 h ago', Math.round(minutes / 60));
  return `${ago} · ${notebooks}`;
}
