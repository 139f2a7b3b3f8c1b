/** Who did what lately, for admins: read when it is shown. */

import * as React from 'react';

import { safeText } from '../describe';
import type { PageApi } from './api';
import { actWords, IAudit } from './audit';
import { english as trans } from './english';

/** Milliseconds after the last key until the log is searched. */
const PAUSE = 300;

const TIME = new Intl.DateTimeFormat('en-GB', {
  day: 'numeric',
  month: 'short',
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit'
});

interface IProps {
  api: PageApi;
  /** Called when nobody is signed in any more, or with what else went wrong. */
  attempt: (work: () => Promise<void>, failure: string) => Promise<void>;
}

export function AuditSection(props: IProps): React.ReactElement {
  const { api, attempt } = props;
  const [audit, setAudit] = React.useState<IAudit | null>(null);
  const [search, setSearch] = React.useState('');
  const read = React.useCallback(
    (user: string, isWanted: () => boolean = () => true) =>
      attempt(async () => {
        const found = await api.audit(user);
        if (isWanted()) {
          setAudit(found);
        }
      }, trans.__('The audit log could not be read')),
    [api, attempt]
  );
  React.useEffect(() => {
    let isWanted = true;
    const timer = setTimeout(() => void read(search.trim(), () => isWanted), search === '' ? 0 : PAUSE);
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [read, search]);
  return (
    <section className="sk-Section sk-Audit" aria-labelledby="sk-audit-title">
      <h2 id="sk-audit-title" className="sk-Section-title">
        {trans.__('Audit log')}
      </h2>
      <div className="sk-People-tools">
        <input
          className="sk-Field"
          type="search"
          aria-label={trans.__('Search who acted, or whose session it was')}
          placeholder={trans.__('Search people')}
          value={search}
          onChange={event => setSearch(event.target.value)}
        />
        <button type="button" className="sk-Button" onClick={() => void read(search.trim())}>
          {trans.__('Read again')}
        </button>
      </div>
      {audit !== null && <Entries audit={audit} />}
    </section>
  );
}

function Entries(props: { audit: IAudit }): React.ReactElement {
  const { entries, older, file } = props.audit;
  if (file === null && entries.length === 0) {
    return <p className="sk-Faint">{trans.__('This gateway keeps no audit log.')}</p>;
  }
  return (
    <>
      {entries.length === 0 ? (
        <p className="sk-Faint">{trans.__('Nothing was found.')}</p>
      ) : (
        <table className="sk-People-table sk-Audit-table">
          <thead>
            <tr>
              <th scope="col">{trans.__('When')}</th>
              <th scope="col">{trans.__('Who')}</th>
              <th scope="col">{trans.__('What')}</th>
              <th scope="col">{trans.__('From')}</th>
            </tr>
          </thead>
          <tbody>
            {entries.map((entry, place) => (
              <tr key={entries.length - place}>
                <td>{entry.time === null ? '' : TIME.format(entry.time)}</td>
                <td>{entry.user === null ? <span className="sk-Faint">–</span> : safeText(entry.user)}</td>
                <td className={entry.refusal === null ? '' : 'sk-Warning'}>{actWords(entry)}</td>
                <td>{entry.address === null ? '' : safeText(entry.address)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {file !== null && (
        <p className="sk-Hint">
          {older
            ? trans.__('These are the newest. All are in %1 on the gateway’s machine.', safeText(file))
            : trans.__('That is all of %1 on the gateway’s machine.', safeText(file))}
        </p>
      )}
    </>
  );
}
