/** Each device at a glance: memory in use, who computes and who waits, and what both are made of under *Details*. */

import * as React from 'react';

import { colourStyle } from './colours';
import { safeText } from './describe';
import { deviceFigures, userFigures } from './figures';
import { formatBytes, fraction, percent, sentences, valueOf } from './format';
import { Lanes } from './lanes';
import type { IAdminApi } from './limits';
import type { INames } from './names';
import { PlacementLine, PolicyLine } from './policy';
import type { IUserOnDevice } from './statusdocument';
import type { IDevice, ISession, IStatus, IUser } from './view';
import { deviceTitle, level, turnWords } from './words';

type UserMemory = Omit<IUserOnDevice, 'device'>;

const KINDS = ['persistent', 'ephemeral', 'framework'] as const;

/** Of more users than so many, only those with the most are listed at first. */
const FEW = 12;

interface IProps extends INames {
  status: IStatus;
  /** Null for who may change nothing. */
  api: IAdminApi | null;
  /** Draws the last hour of a device, by its name; absent where nobody keeps it. */
  chart?: (device: string) => React.ReactNode;
}

export function DeviceStrip(props: IProps): React.ReactElement {
  const { status, units, trans, own } = props;
  const id = React.useId();
  const several = status.devices.length > 1;
  const mine = status.users.find(user => user.name === own);
  // The user's own part first; it is what they look for.
  const users = [...status.users].sort(
    (one, other) => Number(other.name === own) - Number(one.name === own) || one.name.localeCompare(other.name)
  );
  const parts = (memoryOf: (user: IUser) => UserMemory | undefined): IPart[] =>
    users.map(user => ({ user: user.name, colour: user.colour, memory: memoryOf(user) ?? null }));
  return (
    <section
      className={several ? 'sk-Section sk-Devices sk-mod-several' : 'sk-Section sk-Devices'}
      aria-labelledby={id}
    >
      <h2 id={id} className="sk-Hidden">
        {several ? trans.__('Devices') : trans.__('Device')}
      </h2>
      {several ? (
        status.devices.map(device => (
          <Device
            key={device.name}
            {...props}
            device={device}
            sessions={status.sessions.filter(session => session.device === device.name)}
            parts={parts(user => user.devices.find(one => one.device === device.name))}
          />
        ))
      ) : (
        <Device {...props} device={status.device} sessions={status.sessions} parts={parts(user => user)}>
          {mine !== undefined && mine.quota_bytes !== null && (
            <p className={`sk-Hint sk-QuotaUse sk-mod-${quotaLevel(mine, several)}`}>
              {trans.__(
                'Your quota counts %1 of %2.',
                formatBytes(mine.quota_used_bytes, units),
                formatBytes(mine.quota_bytes, units)
              )}
            </p>
          )}
        </Device>
      )}
      <details className="sk-Details">
        <summary>{trans.__('Details')}</summary>
        <Details {...props} users={users} />
      </details>
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
  /** Those on this device. */
  sessions: readonly ISession[];
  parts: readonly IPart[];
  chart?: (device: string) => React.ReactNode;
  /** Below its memory. */
  children?: React.ReactNode;
}

function Device(props: IDeviceProps): React.ReactElement {
  const { device, sessions, parts, units, trans } = props;
  const title = safeText(deviceTitle(device, trans));
  const description = device.description === null ? '' : safeText(device.description);
  const chart = props.chart?.(device.name);
  const name = (
    <p className="sk-Strong" title={description}>
      {title}
    </p>
  );
  if (device.trouble !== null) {
    return (
      <div className="sk-Device">
        {name}
        <p className="sk-Figure">{trans.__('away')}</p>
        <p className="sk-Hint">{safeText(device.trouble)}</p>
      </div>
    );
  }
  const used = formatBytes(device.used_bytes, units);
  const capacity = formatBytes(device.capacity_bytes, units);
  const usage = trans.__('%1 of %2 in use', used, capacity);
  const free = trans.__('%1 free', formatBytes(Math.max(0, device.capacity_bytes - device.used_bytes), units));
  const fullness = level(device.used_bytes, device.capacity_bytes);
  const warning = { normal: null, high: trans.__('nearly full'), full: trans.__('full') }[fullness];
  const [part, whole] = fraction(used, capacity);
  return (
    <div className={`sk-Device sk-mod-${fullness}`}>
      <div className="sk-Device-figures">
        {name}
        <p className="sk-Figure">
          {part} <span className="sk-Figure-whole">/ {whole}</span>
        </p>
        <p className="sk-Device-turns">{turnWords(sessions, trans)}</p>
      </div>
      <div className="sk-Device-memory">
        <div className="sk-Bar" role="img" aria-label={`${title}: ${usage}`}>
          {parts.map(one => one.memory !== null && <UserParts key={one.user} part={one} device={device} />)}
        </div>
        <p className="sk-Line sk-Hint">
          <span>
            {free}
            {warning !== null && <span className="sk-Warning"> · {warning}</span>}
          </span>
          <span>{sentences(deviceFigures, 'line', device, units, trans).join(' · ')}</span>
        </p>
        {props.children}
      </div>
      {chart !== undefined && chart !== null && <div className="sk-Device-chart">{chart}</div>}
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

/** Memory by person and by kind, the policy, and the lanes for experts. */
function Details(props: IProps & { users: readonly IUser[] }): React.ReactElement {
  const { status, users, units, trans, own, api } = props;
  const [all, setAll] = React.useState(false);
  const several = status.devices.length > 1;
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
  return (
    <div className="sk-Details-content">
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
      {status.lanes.length > 0 && <Lanes status={status} units={units} trans={trans} own={own} />}
    </div>
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
