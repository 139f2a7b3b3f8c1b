/**
 * What the Jupyter server tells the page, checked.
 *
 * Everything that comes in passes `parseView`: later on nobody has to ask whether a field is there. What is needed and
 * missing is a `ViewError`, which reaches the user as a notice.
 */

import { isFlag, isNumber, isObject, isText, maybe, need, or, record, ViewError } from './reading';
import {
  IDeviceEntry,
  IDeviceStatus,
  IHostEntry,
  ILaneStatus,
  ISessionStatus,
  IStatusDocument,
  IUserStatus,
  readStatusDocument
} from './statusdocument';

export { ViewError };
export type { IRoomRequest } from './statusdocument';

/** Of the view; as in the server extension's `follower.py`. */
export const VERSION = 1;

export type GatewayState = 'connecting' | 'connected' | 'no_figures' | 'away' | 'refused' | 'unconfigured';

export interface IDevice extends IDeviceStatus {
  /** Why its executor does not answer; null while it does. */
  trouble: string | null;
}

export type IHost = IHostEntry;
export type ILane = ILaneStatus;
export interface ISession extends ISessionStatus {
  /** Whether it runs on the device, or has just done so and waits for its next turn. */
  computing: boolean;
  /** For how many whole minutes this page has seen it wait. */
  waited_minutes: number;
}
export type IUser = IUserStatus;

export interface IStatus extends Omit<IStatusDocument, 'device' | 'devices' | 'sessions'> {
  /** All of them together. */
  device: IDevice;
  /** Each of several; empty where there is only one, as `hosts`. */
  devices: IDevice[];
  sessions: ISession[];
}

export interface IView {
  /** `since`: when there were figures last; null where the gateway does not know. */
  gateway: { state: GatewayState; message: string | null; since: Date | null };
  /** Null while not known. */
  user: { name: string; admin: boolean } | null;
  /** What of the user's is on the gateway's machine; null where that is this one, or not known. */
  host: { name: string; files: boolean; terminals: boolean } | null;
  /** The session behind each kernel of this Jupyter server, by kernel id. */
  kernels: ReadonlyMap<string, string>;
  /** The last one while the gateway is away. */
  status: IStatus | null;
}

/** Another version of the view than this page knows. */
export class VersionError extends ViewError {}

/** Before anything has arrived. */
export const EMPTY_VIEW: IView = {
  gateway: { state: 'connecting', message: null, since: null },
  user: null,
  host: null,
  kernels: new Map(),
  status: null
};

const STATES: readonly string[] = ['connecting', 'connected', 'no_figures', 'away', 'refused', 'unconfigured'];
const isState = (value: unknown): value is GatewayState => isText(value) && STATES.includes(value);

const readView = record({
  gateway: record({ state: need(isState), message: or(isText, null), since: or(isNumber, null) }),
  user: maybe(record({ name: need(isText), admin: or(isFlag, false) })),
  host: maybe(record({ name: need(isText), files: or(isFlag, false), terminals: or(isFlag, false) })),
  kernels: need(isObject),
  status: maybe(readStatusDocument)
});

/**
 * Return the view in a message of the Jupyter server.
 *
 * @throws ViewError when it is none.
 */
export function parseView(message: string): IView {
  let data: unknown;
  try {
    data = JSON.parse(message);
  } catch {
    throw new ViewError('what arrived is no JSON');
  }
  const { version } = record({ version: or(isNumber, null) })(data, 'the view');
  if (version !== VERSION) {
    throw new VersionError(`version ${version} instead of ${VERSION}`);
  }
  const { gateway, user, host, kernels, status } = readView(data, 'the view');
  return {
    gateway: { ...gateway, since: gateway.since === null ? null : new Date(gateway.since * 1000) },
    user,
    host,
    kernels: new Map(Object.entries(kernels).map(([kernel, session]) => [kernel, String(session)])),
    status: status === null ? null : shown(status)
  };
}

/** Of a user, as the gateway writes it. */
const COLOUR = /^#[0-9a-f]{6}$/;

/** Return a document as it is shown: durations as coarse as people read them, so that not every message changes one. */
function shown(status: IStatusDocument): IStatus {
  const { hosts } = status;
  return {
    ...status,
    device: { ...status.device, trouble: null },
    devices: status.devices.map(shownDevice),
    hosts: hosts.length > 1 ? hosts : [],
    users: status.users.map(user => ({ ...user, colour: COLOUR.test(user.colour ?? '') ? user.colour : null })),
    sessions: status.sessions.map(session => ({
      ...session,
      computing: session.state === 'running' || session.state === 'preempting',
      waited_minutes: 0,
      idle_seconds: 60 * Math.floor(session.idle_seconds / 60),
      lingering_seconds: coarse(session.lingering_seconds, seconds => 60 * Math.ceil(seconds / 60)),
      memory_wait_seconds: coarse(session.memory_wait_seconds, seconds => Math.max(1, Math.round(seconds)))
    }))
  };
}

function coarse(seconds: number | null, round: (seconds: number) => number): number | null {
  return seconds === null ? null : round(seconds);
}

function shownDevice(device: IDeviceEntry): IDevice {
  return {
    ...device,
    kind: device.kind ?? '',
    policy: device.policy ?? '',
    capacity_bytes: device.capacity_bytes ?? 0,
    reserve_bytes: device.reserve_bytes ?? 0,
    used_bytes: device.used_bytes ?? 0,
    quantum_seconds: device.quantum_seconds ?? 0,
    trouble: device.available ? null : (device.message ?? '')
  };
}
