/** The hosts of a cluster: which of them answer, and what each has. Nothing where there is only one. */

import * as React from 'react';

import { safeText } from './describe';
import type { INames } from './names';
import { Section } from './section';
import type { IStatus } from './view';
import { hostWords, leftOutWords } from './words';

/** More hosts than so many are shown on request only. */
const FEW = 8;

interface IProps extends INames {
  status: IStatus;
  isFolded?: boolean;
}

export function HostsSection(props: IProps): React.ReactElement | null {
  const { status, trans, isFolded = false } = props;
  const { hosts } = status;
  const left_out = leftOutWords(status, trans);
  const [all, setAll] = React.useState(false);
  if (hosts.length === 0) {
    return null;
  }
  // those that need somebody's attention first
  const listed = [...hosts].sort((one, other) => Number(one.answering) - Number(other.answering));
  const title = (
    <>
      {trans.__('Hosts')}
      <span className="sk-Faint">{hosts.length}</span>
    </>
  );
  return (
    <Section title={title} isFolded={isFolded}>
      <table className="sk-Timeline-table">
        <thead>
          <tr>
            <th scope="col">{trans.__('Host')}</th>
            <th scope="col">{trans.__('State')}</th>
            <th scope="col">{trans.__('Devices')}</th>
            <th scope="col">{trans.__('Sessions')}</th>
            <th scope="col">{trans.__('Version')}</th>
          </tr>
        </thead>
        <tbody>
          {(all ? listed : listed.slice(0, FEW)).map(host => (
            <tr key={host.name}>
              <th scope="row">{safeText(host.name)}</th>
              <td title={host.message === null ? undefined : safeText(host.message)}>{hostWords(host, trans)}</td>
              <td>{host.num_devices}</td>
              <td>{host.num_sessions ?? 0}</td>
              <td>{host.version === null ? '' : safeText(host.version)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {left_out !== null && <p className="sk-Hint">{left_out}</p>}
      {hosts.length > FEW && (
        <button type="button" className="sk-Button" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? trans.__('Show fewer') : trans.__('Show all %1', hosts.length)}
        </button>
      )}
    </Section>
  );
}
