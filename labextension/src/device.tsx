/** The devices' memory, one bar each: by user, and by kind within each user. */

import * as React from 'react';

import { Api } from './api';
import { memoryByKind, safeText } from './describe';
import { formatBytes, percent } from './format';
import type { INames } from './names';
import { PolicyLine } from './policy';
import type { IDevice, IMemory, IStatus, IUser } from './view';

/** Colours of users in `style/base.css`; more users than that take them again. */
const NUM_COLOURS = 6;

const KINDS = ['persistent', 'ephemeral', 'framework'] as const;

interface IProps extends INames {
  status: IStatus;
  /** Null for who may change nothing. */
  api: Api | null;
}

export function DeviceSection(props: IProps): React.ReactElement {
  const { status, units, trans, own, api } = props;
  // The user's own part first; it is what they look for.
  const users = [...status.users].sort(
    (one, other) => Number(other.name === own) - Number(one.name === own) || one.name.localeCompare(other.name)
  );
  const names = {
    persistent: trans.__('persistent'),
    ephemeral: trans.__('ephemeral'),
    framework: trans.__('framework')
  };
  const several = status.devices.length > 1;
  return (
    <section className="sk-Section" aria-labelledby="sk-device-title">
      <h2 id="sk-device-title" className="sk-Section-title">
        {several ? trans.__('Devices') : trans.__('Device')}
      </h2>
      {several ? (
        status.devices.map(device => (
          <Device
            key={device.name}
            {...props}
            device={device}
            parts={users.map(user => user.byDevice.get(device.name) ?? null)}
          />
        ))
      ) : (
        <Device {...props} device={status.device} parts={users} />
      )}
      <ul className="sk-Legend">
        {users.map((user, index) => (
          <li key={user.name} title={memoryByKind(user, units, trans)}>
            <span className={`sk-Swatch sk-mod-colour${index % NUM_COLOURS}`} aria-hidden="true" />
            <span className="sk-Legend-name">
              {user.name === own ? trans.__('%1 (you)', safeText(user.name)) : safeText(user.name)}
            </span>
            <span className="sk-Legend-amount">{amount(user, several, props)}</span>
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
      <PolicyLine policy={status.device.policy} api={api} trans={trans} />
    </section>
  );
}

interface IDeviceProps extends INames {
  device: IDevice;
  /** What each user has there, in the order of their colours; null: nothing. */
  parts: ReadonlyArray<IMemory | null>;
}

function Device(props: IDeviceProps): React.ReactElement {
  const { device, parts, units, trans } = props;
  const usage = trans.__(
    '%1 of %2 in use',
    formatBytes(device.usedBytes, units),
    formatBytes(device.capacityBytes, units)
  );
  const title = device.description === null ? '' : safeText(device.description);
  return (
    <div className="sk-Device">
      <p className="sk-Line">
        <span className="sk-Strong" title={title}>
          {safeText(device.name)}
        </span>
        <span>{device.trouble === null ? usage : trans.__('away')}</span>
      </p>
      {device.trouble === null ? (
        <div className="sk-Bar" role="img" aria-label={trans.__('%1: %2', safeText(device.name), usage)}>
          {parts.map(
            (part, index) => part !== null && <UserParts key={index} part={part} index={index} device={device} />
          )}
        </div>
      ) : (
        <p className="sk-Hint">{safeText(device.trouble)}</p>
      )}
    </div>
  );
}

function UserParts(props: { part: IMemory; index: number; device: IDevice }): React.ReactElement {
  const { part, index, device } = props;
  const bytes = {
    persistent: part.persistentBytes,
    ephemeral: part.ephemeralBytes,
    framework: part.frameworkBytes
  };
  return (
    <>
      {KINDS.map(kind => (
        <div
          key={kind}
          className={`sk-Bar-part sk-mod-colour${index % NUM_COLOURS} sk-mod-${kind}`}
          style={{ width: `${percent(bytes[kind], device.capacityBytes)}%` }}
        />
      ))}
    </>
  );
}

/** What a user has, and of how much; quotas of several devices are no one amount. */
function amount(user: IUser, several: boolean, props: INames): string {
  const { units, trans } = props;
  const charged = formatBytes(user.persistentBytes + user.ephemeralBytes, units);
  return user.quotaBytes === null || several
    ? charged
    : trans.__('%1 of %2', charged, formatBytes(user.quotaBytes, units));
}
