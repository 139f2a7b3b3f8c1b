/** Who runs now, who is next, and who waits for memory. */

import * as React from 'react';

import { holderName } from './describe';
import { colourStyle } from './colours';
import { sessionFigures } from './figures';
import { sentences } from './format';
import type { INames } from './names';
import type { ISession, IStatus } from './view';
import { roomWords, turnsOf, waitWords } from './words';

/** More sessions than so many are shown on request only. */
const FEW = 8;

interface IProps extends INames {
  status: IStatus;
  /** The colour of each user. */
  colours: ReadonlyMap<string, string>;
}

export function TurnsSection(props: IProps): React.ReactElement {
  const { status, trans } = props;
  const { running, next, waiting } = turnsOf(status.sessions);
  const id = React.useId();
  return (
    <section className="sk-Section sk-Turns" aria-labelledby={id}>
      <h2 id={id} className="sk-Section-title">
        {trans.__('Running and next')}
      </h2>
      <Turns
        {...props}
        title={trans.__('Running now')}
        empty={trans.__('Nobody uses the device now.')}
        list={running}
      />
      <Turns {...props} title={trans.__('Next')} empty={trans.__('Nobody waits for a turn.')} list={next} />
      {waiting.length > 0 && <Turns {...props} title={trans.__('Waiting for memory')} empty="" list={waiting} />}
    </section>
  );
}

interface ITurnsProps extends IProps {
  title: string;
  /** Said when there are none. */
  empty: string;
  list: readonly ISession[];
}

function Turns(props: ITurnsProps): React.ReactElement {
  const { title, empty, list, trans } = props;
  const [all, setAll] = React.useState(false);
  const id = React.useId();
  return (
    <div className="sk-Turns-part">
      <h3 id={id} className="sk-Turns-title">
        {title}
        {list.length > 1 && <span className="sk-Faint">{list.length}</span>}
      </h3>
      {list.length === 0 ? (
        <p className="sk-Faint">{empty}</p>
      ) : (
        <ol className="sk-Turns-list" aria-labelledby={id}>
          {(all ? list : list.slice(0, FEW)).map(session => (
            <Turn key={session.id} session={session} {...props} />
          ))}
        </ol>
      )}
      {list.length > FEW && (
        <button type="button" className="sk-Button" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? trans.__('Show fewer') : trans.__('Show all %1', list.length)}
        </button>
      )}
    </div>
  );
}

function Turn(props: ITurnsProps & { session: ISession }): React.ReactElement {
  const { session, title, own, units, trans, colours } = props;
  const runs = session.queue_position === null && (session.state === 'running' || session.state === 'preempting');
  const room = runs ? null : roomWords(session, props.status.sessions, own, trans);
  const words = runs
    ? sentences(sessionFigures, 'line', session, units, trans).join(' · ')
    : waitWords(session, own, units, trans);
  return (
    <li className={session.user === own ? 'sk-Turn sk-mod-own' : 'sk-Turn'}>
      <span className="sk-Turn-name">
        <span className="sk-Swatch" style={colourStyle(colours.get(session.user))} aria-hidden="true" />{' '}
        {holderName(session, own, trans)}
      </span>
      {words !== '' && words !== title && <span className="sk-Turn-words">{words}</span>}
      {room !== null && <span className="sk-Turn-words sk-mod-below">{room}</span>}
    </li>
  );
}
