/** The devices' memory, one bar each: by user, and by kind within each user. */

import * as React from 'react';

import { safeText } from './describe';
import { deviceFigures, userFigures } from './figures';
import { formatBytes, percent, sentences, valueOf } from './format';
import type { IAdminApi } from './limits';
import type { INames } from './names';
import { PlacementLine, PolicyLine } from './policy';
import type { IUserOnDevice } from './statusdocument';
import type { IDevice, IStatus, IUser } from './view';
import { deviceTitle, level } from './words';

type UserMemory = Omit<IUserOnDevice, 'device'>;

const KINDS = ['persistent', 'ephemeral', 'framework'] as const;

/** Of more users than so many, only those with the most are listed at first. */
const FEW = 12;

interface IProps extends INames {
  status: IStatus;
  /** Null for who may change nothing. */
  api: IAdminApi | null;
}

export function DeviceSection(props: IProps): React.ReactElement {
  const { status, units, trans, own, api } = props;
  // The user's own part first; it is what they look for.
  const users = [...status.users].sort(
    (one, other) => Number(other.name === own) - Number(one.name === own) || one.name.localeCompare(other.name)
  );
  const id = React.useId();
  const [all, setAll] = React.useState(false);
  const listed = all ? users : largest(users, own);
  const names = {
    persistent: trans.__('persistent: kept between cells'),
    ephemeral: trans.__('ephemeral: while a cell runs'),
    framework: trans.__('framework: PyTorch itself')
  };
  const sums = { persistent: 0, ephemeral: 0, framework: 0 };
  for (const user of users) {
    const bytes = bytesNow(user);
    KINDS.forEach(kind => (sums[kind] += bytes[kind]));
  }
  const several = status.devices.length > 1;
  const mine = users.find(user => user.name === own);
  const parts = (memoryOf: (user: IUser) => UserMemory | undefined): IPart[] =>
    users.map(user => ({ user: user.name, colour: user.colour, memory: memoryOf(user) ?? null }));
  return (
    <section className="sk-Section" aria-labelledby={id}>
      <h2 id={id} className="sk-Section-title">
        {several ? trans.__('Devices') : trans.__('Device')}
      </h2>
      {several ? (
        status.devices.map(device => (
          <Device
            key={device.name}
            {...props}
            device={device}
            parts={parts(user => user.devices.find(one => one.device === device.name))}
          />
        ))
      ) : (
        <Device {...props} device={status.device} parts={parts(user => user)} />
      )}
      <ul className="sk-Legend">
        {listed.map(user => (
          <li key={user.name} title={details(user, several, props)}>
            <span className="sk-Swatch" style={colourStyle(user.colour)} aria-hidden="true" />
            <span className={user.name === own ? 'sk-Legend-name sk-mod-own' : 'sk-Legend-name'}>
              {safeText(user.name)}
            </span>
            {user.name === own && <span className="sk-Legend-you">{trans.__('(you)')}</span>}
            <span className={`sk-Legend-amount sk-mod-${quotaLevel(user, several)}`}>
              {sentences(userFigures, 'beside', user, units, trans).join(' · ')}
            </span>
          </li>
        ))}
      </ul>
      {mine !== undefined && mine.quota_bytes !== null && !several && (
        <p className={`sk-Hint sk-QuotaUse sk-mod-${quotaLevel(mine, several)}`}>
          {trans.__(
            'Your quota counts %1 of %2.',
            formatBytes(mine.quota_used_bytes, units),
            formatBytes(mine.quota_bytes, units)
          )}
        </p>
      )}
      {users.length > FEW && (
        <button type="button" className="sk-Button" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? trans.__('Show fewer') : trans.__('Show all %1 people', users.length)}
        </button>
      )}
      <p className="sk-Kinds">
        {KINDS.map(kind => (
          <span key={kind} className="sk-Kind">
            <span className={`sk-Swatch sk-mod-sample sk-mod-${kind}`} aria-hidden="true" />
            {trans.__('%1, %2', names[kind], formatBytes(sums[kind], units))}
          </span>
        ))}
      </p>
      <PolicyLine policy={status.device.policy} summary={status.device.policy_summary} api={api} trans={trans} />
      {api !== null && status.placement !== null && <PlacementLine rule={status.placement} trans={trans} />}
    </section>
  );
}

/** What one user has on a device. */
interface IPart {
  user: string;
  colour: string | null;
  /** Null: nothing. */
  memory: UserMemory | null;
}

interface IDeviceProps extends INames {
  device: IDevice;
  parts: readonly IPart[];
}

function Device(props: IDeviceProps): React.ReactElement {
  const { device, parts, units, trans } = props;
  const usage = trans.__(
    '%1 of %2 in use',
    formatBytes(device.used_bytes, units),
    formatBytes(device.capacity_bytes, units)
  );
  const free = trans.__('%1 free', formatBytes(Math.max(0, device.capacity_bytes - device.used_bytes), units));
  const fullness = level(device.used_bytes, device.capacity_bytes);
  const warning = { normal: null, high: trans.__('nearly full'), full: trans.__('full') }[fullness];
  const title = device.description === null ? '' : safeText(device.description);
  const sensors = sentences(deviceFigures, 'line', device, units, trans);
  return (
    <div className={`sk-Device sk-mod-${fullness}`}>
      <p className="sk-Line">
        <span className="sk-Strong" title={title}>
          {safeText(deviceTitle(device, trans))}
        </span>
        <span>
          {device.trouble === null ? usage : trans.__('away')}
          {device.trouble === null && warning !== null && <span className="sk-Warning"> · {warning}</span>}
        </span>
      </p>
      {device.trouble === null ? (
        <div className="sk-Bar" role="img" aria-label={trans.__('%1: %2', safeText(deviceTitle(device, trans)), usage)}>
          {parts.map(part => part.memory !== null && <UserParts key={part.user} part={part} device={device} />)}
        </div>
      ) : (
        <p className="sk-Hint">{safeText(device.trouble)}</p>
      )}
      {device.trouble === null && (
        <p className="sk-Line sk-Hint">
          <span>{sensors.join(' · ')}</span>
          <span>{free}</span>
        </p>
      )}
    </div>
  );
}

function UserParts(props: { part: IPart; device: IDevice }): React.ReactElement {
  const { part, device } = props;
  const bytes = bytesNow(part.memory);
  return (
    <>
      {KINDS.map(kind => (
        <div
          key={kind}
          className={`sk-Bar-part sk-mod-${kind}`}
          title={safeText(part.user)}
          style={{ ...colourStyle(part.colour), width: `${percent(bytes[kind], device.capacity_bytes)}%` }}
        />
      ))}
    </>
  );
}

/** Return what is in use now, by kind: with all users' it comes to the device's figure. */
function bytesNow(memory: UserMemory | null): Record<(typeof KINDS)[number], number> {
  return {
    persistent: (memory?.persistent_bytes ?? 0) + (memory?.shelf_bytes ?? 0),
    ephemeral: memory?.ephemeral_bytes ?? 0,
    framework: memory?.framework_bytes ?? 0
  };
}

/** Return the colours of the users who have one, as the gateway has chosen them. A colour is never the only label. */
export function userColours(status: IStatus | null): Map<string, string> {
  const colours = new Map<string, string>();
  for (const { name, colour } of status?.users ?? []) {
    if (colour !== null) {
      colours.set(name, colour);
    }
  }
  return colours;
}

/** Return the style that gives an element a user's colour. */
export function colourStyle(colour: string | null | undefined): React.CSSProperties {
  return { '--sk-colour': colour } as React.CSSProperties;
}

/** Return the users with the most memory, the user's own first, in the order that they had. */
function largest(users: readonly IUser[], own: string | null): IUser[] {
  const weight = (user: IUser) => (user.name === own ? Infinity : (valueOf(userFigures.memory, user) ?? 0));
  const kept = new Set([...users].sort((one, other) => weight(other) - weight(one) || 0).slice(0, FEW));
  return users.filter(user => kept.has(user));
}

/** Return how near its quota a user is; quotas of several devices are no one amount. */
function quotaLevel(user: IUser, several: boolean): ReturnType<typeof level> {
  return user.quota_bytes === null || several ? 'normal' : level(user.quota_used_bytes, user.quota_bytes);
}

/** Return what a user has by kind, a line each with what counts for the quota. */
function details(user: IUser, several: boolean, { units, trans }: INames): string {
  const kinds = sentences(userFigures, 'details', user, units, trans).join(', ');
  if (user.quota_bytes === null || several) {
    return kinds;
  }
  const counted = trans.__(
    '%1 of %2 count for the quota',
    formatBytes(user.quota_used_bytes, units),
    formatBytes(user.quota_bytes, units)
  );
  return `${kinds}\n${counted}`;
}
