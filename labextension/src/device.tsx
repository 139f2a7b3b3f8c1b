/** The device's memory as one bar: by user, and by kind within each user. */

import * as React from 'react';

import { memoryByKind, safeText } from './describe';
import { formatBytes, percent } from './format';
import type { INames } from './names';
import type { IStatus, IUser } from './view';

/** Colours of users in `style/base.css`; more users than that take them again. */
const NUM_COLOURS = 6;

const KINDS = ['persistent', 'ephemeral', 'framework'] as const;

interface IProps extends INames {
  status: IStatus;
}

export function DeviceSection(props: IProps): React.ReactElement {
  const { status, units, trans, own } = props;
  const { device } = status;
  // The user's own part first; it is what they look for.
  const users = [...status.users].sort(
    (one, other) => Number(other.name === own) - Number(one.name === own) || one.name.localeCompare(other.name)
  );
  const names = {
    persistent: trans.__('persistent'),
    ephemeral: trans.__('ephemeral'),
    framework: trans.__('framework')
  };
  const usage = trans.__(
    '%1 of %2 in use',
    formatBytes(device.usedBytes, units),
    formatBytes(device.capacityBytes, units)
  );
  return (
    <section className="sk-Section" aria-labelledby="sk-device-title">
      <h2 id="sk-device-title" className="sk-Section-title">
        {trans.__('Device')}
      </h2>
      <p className="sk-Line">
        <span className="sk-Strong">{safeText(device.name)}</span>
        <span>{usage}</span>
      </p>
      <div className="sk-Bar" role="img" aria-label={usage}>
        {users.map((user, index) => (
          <UserParts key={user.name} user={user} index={index} whole={device.capacityBytes} />
        ))}
      </div>
      <ul className="sk-Legend">
        {users.map((user, index) => (
          <li key={user.name} title={memoryByKind(user, units, trans)}>
            <span className={`sk-Swatch sk-mod-colour${index % NUM_COLOURS}`} aria-hidden="true" />
            <span className="sk-Legend-name">
              {user.name === own ? trans.__('%1 (you)', safeText(user.name)) : safeText(user.name)}
            </span>
            <span className="sk-Legend-amount">{amount(user, props)}</span>
          </li>
        ))}
      </ul>
      <p className="sk-Kinds" aria-hidden="true">
        {KINDS.map(kind => (
          <span key={kind} className="sk-Kind">
            <span className={`sk-Swatch sk-mod-sample sk-mod-${kind}`} />
            {names[kind]}
          </span>
        ))}
      </p>
      <p className="sk-Line sk-Faint">{trans.__('Policy: %1', safeText(device.policy))}</p>
    </section>
  );
}

function UserParts(props: { user: IUser; index: number; whole: number }): React.ReactElement {
  const { user, index, whole } = props;
  const bytes = {
    persistent: user.persistentBytes,
    ephemeral: user.ephemeralBytes,
    framework: user.frameworkBytes
  };
  return (
    <>
      {KINDS.map(kind => (
        <div
          key={kind}
          className={`sk-Bar-part sk-mod-colour${index % NUM_COLOURS} sk-mod-${kind}`}
          style={{ width: `${percent(bytes[kind], whole)}%` }}
        />
      ))}
    </>
  );
}

function amount(user: IUser, props: INames): string {
  const { units, trans } = props;
  const charged = formatBytes(user.persistentBytes + user.ephemeralBytes, units);
  return user.quotaBytes === null ? charged : trans.__('%1 of %2', charged, formatBytes(user.quotaBytes, units));
}
