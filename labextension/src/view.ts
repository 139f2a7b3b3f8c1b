/**
 * What the Jupyter server tells the page, checked.
 *
 * Everything that comes in passes `parseView`: later on nobody has to ask whether a field is there. Fields that are
 * not known are ignored, so that a newer gateway does no harm; what is needed and missing is a `ViewError`, which
 * reaches the user as a notice.
 */

import type {
  IDeviceEntry,
  IDeviceStatus,
  IDraining as IDrainingFields,
  IHostEntry,
  ILaneStatus,
  ILeftOut,
  IRoomRequest as IRoomRequestFields,
  ISessionStatus,
  IStatusDocument,
  IUserOnDevice,
  IUserStatus
} from './statusdocument';

/** Of the view; as in the server extension's `follower.py`. */
export const VERSION = 1;

export type GatewayState = 'connecting' | 'connected' | 'no_figures' | 'away' | 'refused' | 'unconfigured';

export interface IDevice {
  name: string;
  kind: string;
  /** What the executor calls it, where that is another name; null where it is not known. */
  description: string | null;
  capacityBytes: number;
  reserveBytes: number;
  usedBytes: number;
  policy: string;
  /** What the policy does, in one sentence. */
  policySummary: string | null;
  /** Why its executor does not answer; null while it does. */
  trouble: string | null;
  /** In percent; null where it is not known, as all below. */
  utilisation: number | null;
  temperatureCelsius: number | null;
  powerWatts: number | null;
  powerLimitWatts: number | null;
}

export interface ILane {
  id: string;
  /** What its device calls it: ids are unique over all devices. */
  number: string;
  /** Its device; null where there is only one. */
  device: string | null;
  sizeBytes: number;
  /** A session id; null while nobody runs. */
  holder: string | null;
  /** Session ids, next first. */
  queue: string[];
}

export interface IMemory {
  persistentBytes: number;
  /** In use right now beyond the persistent memory. */
  ephemeralBytes: number;
  frameworkBytes: number;
}

export interface IUserMemory extends IMemory {
  shelfBytes: number;
  /** What counts against the quota. */
  quotaUsedBytes: number;
}

export interface IUser extends IUserMemory {
  name: string;
  /** `#rrggbb`; null before the user's first session, and from an older gateway. */
  colour: string | null;
  share: number;
  quotaBytes: number | null;
  /** By device; empty where there is only one. */
  byDevice: ReadonlyMap<string, IUserMemory>;
}

export interface ISession extends IMemory {
  id: string;
  /** The kernel under which the gateway's clients know it; null where it is not this user's to know. */
  kernelId: string | null;
  user: string;
  /** Such as `idle`, `running`, `offloaded`; a newer gateway may have more. */
  state: string;
  /** Whether it was shut down, and can still be brought back. */
  lingering: boolean;
  /** Whether it was shut down because its notebook's kernel was restarted. */
  restarted: boolean;
  /** For how much longer, in whole minutes, so that not every message changes it; null where nobody knows. */
  lingeringMinutes: number | null;
  /** What goes on or is held in one that was shut down, in words such as `port 8000`. */
  stillHas: string;
  /** Path of its notebook; null where there is none, or where it is not this user's to know. */
  notebook: string | null;
  offloadedBytes: number;
  /** What stayed on the device when it was offloaded, or why it was not. */
  offloadNote: string | null;
  iterations: number;
  /** Since something last ran in it, in whole minutes. */
  idleMinutes: number;
  /** From 1; null while not in line. */
  queuePosition: number | null;
  /** Such as `memory`, `lane`, `quota`, `restore`. */
  waitingFor: string | null;
  /** Memory that it waits for, and what of it is free; null where nobody knows. */
  neededBytes: number | null;
  freeBytes: number | null;
  /** Id of the session whose memory is expected to leave the device for it, in about so many seconds; null: not known. */
  roomFrom: string | null;
  roomSeconds: number | null;
  /** Its device and its host; null where there is only one. */
  device: string | null;
  host: string | null;
  /** Device time that its cell still needs, in seconds; null where nobody knows. */
  remainingSeconds: number | null;
}

/** A user whose cell waits for memory asks for that of an idle session. */
export interface IRoomRequest {
  /** Ids of the idle session and of the one that waits, and their users. */
  session: string;
  owner: string;
  askingSession: string;
  askedBy: string;
}

/** One of several hosts; null: not known. */
export interface IHost {
  name: string;
  isAnswering: boolean;
  /** Why it does not answer. */
  trouble: string | null;
  /** Whether it gets no new sessions, and nobody has anything there any more. */
  isCordoned: boolean;
  isDrained: boolean;
  /** Whether a Ray cluster is in touch with it, where there is one. */
  isInRay: boolean | null;
  version: string | null;
  numDevices: number;
  numSessions: number;
}

export interface IStatus {
  /** All of them together. */
  device: IDevice;
  /** Each of several; empty where there is only one. */
  devices: IDevice[];
  /** Of several hosts; empty where there is only one. */
  hosts: IHost[];
  /** How many of each kind a large cluster's document leaves out; empty: none. */
  leftOut: ReadonlyMap<string, number>;
  lanes: ILane[];
  users: IUser[];
  sessions: ISession[];
  /** Those that concern this user. */
  roomRequests: IRoomRequest[];
  /** The rule by which new sessions get one of several devices; null where there is only one. */
  placement: string | null;
  /** Null: the gateway does not drain. */
  draining: IDraining | null;
}

/** The gateway starts no more sessions, and stops once the cells that run have ended. */
export interface IDraining {
  /** Cells that it waits for. */
  cells: number;
  /** When it stops at the latest; null: when the last of them has ended. */
  until: Date | null;
}

export interface IView {
  /** `since`: when there were figures last; null where the gateway does not know. */
  gateway: { state: GatewayState; message: string | null; since: Date | null };
  /** Null while not known. */
  user: { name: string; admin: boolean } | null;
  /** The session behind each kernel of this Jupyter server, by kernel id. */
  kernels: ReadonlyMap<string, string>;
  /** The last one while the gateway is away. */
  status: IStatus | null;
}

/** What arrived cannot be shown. */
export class ViewError extends Error {}

/** Another version of the view than this page knows. */
export class VersionError extends ViewError {}

/** Before anything has arrived. */
export const EMPTY_VIEW: IView = {
  gateway: { state: 'connecting', message: null, since: null },
  user: null,
  kernels: new Map(),
  status: null
};

/**
 * Return the view in a message of the Jupyter server.
 *
 * @throws ViewError when it is none.
 */
export function parseView(text: string): IView {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    throw new ViewError('what arrived is no JSON');
  }
  const root = record<IViewFields>(data, 'the view');
  if (root.version !== VERSION) {
    throw new VersionError(`version ${String(root.version)} instead of ${VERSION}`);
  }
  const gateway = record<{ state: string; message: string; since: number }>(root.gateway, 'gateway');
  return {
    gateway: {
      state: gatewayState(gateway.state),
      message: textOrNull(gateway.message),
      since: momentOrNull(gateway.since)
    },
    user: isNothing(root.user) ? null : parseUser(record<{ name: string; admin: boolean }>(root.user, 'user')),
    kernels: new Map(
      Object.entries(record<Record<string, string>>(root.kernels, 'kernels')).map(([kernel, session]) => [
        kernel,
        String(session)
      ])
    ),
    status: isNothing(root.status) ? null : parseStatus(record<IStatusDocument>(root.status, 'status'))
  };
}

/** An object with the fields of `T`, none of which is checked yet. */
type Fields<T> = { readonly [K in keyof T]?: unknown };

interface IViewFields {
  version: number;
  gateway: object;
  user: object | null;
  kernels: Record<string, string>;
  status: IStatusDocument | null;
}

/** Of a user, as the gateway writes it. */
const COLOUR = /^#[0-9a-f]{6}$/;

const STATES: readonly string[] = ['connecting', 'connected', 'no_figures', 'away', 'refused', 'unconfigured'];

function gatewayState(value: unknown): GatewayState {
  if (typeof value !== 'string' || !STATES.includes(value)) {
    throw new ViewError(`unknown state ${String(value)} of the gateway`);
  }
  return value as GatewayState;
}

function parseUser(fields: Fields<{ name: string; admin: boolean }>): { name: string; admin: boolean } {
  return { name: text(fields.name, 'name'), admin: fields.admin === true };
}

/** Where a cell's need may be known from for people to rely on it; as in Python's `status/text.py`. */
const KNOWN_FROM: readonly unknown[] = ['declared', 'earlier'];

function parseDevice(fields: Fields<IDeviceStatus & Partial<IDeviceEntry>>): IDevice {
  return {
    name: text(fields.name, 'device.name'),
    kind: textOrNull(fields.kind) ?? '',
    description: textOrNull(fields.description),
    capacityBytes: amount(fields.capacity_bytes),
    reserveBytes: amount(fields.reserve_bytes),
    usedBytes: amount(fields.used_bytes),
    policy: textOrNull(fields.policy) ?? '',
    policySummary: textOrNull(fields.policy_summary),
    trouble: fields.available === false ? (textOrNull(fields.message) ?? '') : null,
    utilisation: numberOrNull(fields.utilisation),
    temperatureCelsius: numberOrNull(fields.temperature_celsius),
    powerWatts: numberOrNull(fields.power_watts),
    powerLimitWatts: numberOrNull(fields.power_limit_watts)
  };
}

function parseStatus(fields: Fields<IStatusDocument>): IStatus {
  const leftOut = isNothing(fields.left_out) ? {} : record<ILeftOut>(fields.left_out, 'left_out');
  const device = record<IDeviceStatus>(fields.device, 'device');
  text(device.kind, 'device.kind');
  return {
    device: parseDevice(device),
    devices: isNothing(fields.devices) ? [] : list<IDeviceEntry>(fields.devices, 'devices').map(parseDevice),
    hosts: isNothing(fields.hosts) ? [] : severalHosts(list<IHostEntry>(fields.hosts, 'hosts').map(parseHost)),
    leftOut: new Map(
      LEFT_OUT.map((kind): [string, number] => [kind, amount(leftOut[kind])]).filter(([, count]) => count > 0)
    ),
    lanes: list<ILaneStatus>(fields.lanes, 'lanes').map(lane => ({
      id: String(lane.id),
      number: String(lane.number ?? lane.id),
      device: textOrNull(lane.device),
      sizeBytes: amount(lane.size_bytes),
      holder: textOrNull(lane.holder),
      queue: Array.isArray(lane.queue) ? lane.queue.map(String) : []
    })),
    users: list<IUserStatus>(fields.users, 'users').map(user => ({
      name: text(user.name, 'users.name'),
      colour: typeof user.colour === 'string' && COLOUR.test(user.colour) ? user.colour : null,
      share: typeof user.share === 'number' ? user.share : 1,
      quotaBytes: typeof user.quota_bytes === 'number' ? user.quota_bytes : null,
      byDevice: new Map(
        isNothing(user.devices)
          ? []
          : list<IUserOnDevice>(user.devices, 'users.devices').map(entry => [
              text(entry.device, 'users.devices.device'),
              userMemory(entry)
            ])
      ),
      ...userMemory(user)
    })),
    sessions: list<ISessionStatus>(fields.sessions, 'sessions').map(session => ({
      id: text(session.id, 'sessions.id'),
      kernelId: textOrNull(session.kernel_id),
      user: text(session.user, 'sessions.user'),
      state: text(session.state, 'sessions.state'),
      lingering: session.lingering === true,
      restarted: session.restarted === true,
      lingeringMinutes: minutes(numberOrNull(session.lingering_seconds)),
      stillHas: Array.isArray(session.still_has) ? session.still_has.map(String).join(', ') : '',
      notebook: textOrNull(session.notebook),
      offloadedBytes: amount(session.offloaded_bytes),
      offloadNote: textOrNull(session.offload_note),
      iterations: amount(session.iterations),
      idleMinutes: Math.floor(amount(session.idle_seconds) / 60),
      queuePosition: typeof session.queue_position === 'number' ? session.queue_position : null,
      waitingFor: textOrNull(session.waiting_for),
      neededBytes: numberOrNull(session.needed_bytes),
      freeBytes: numberOrNull(session.free_bytes),
      roomFrom: textOrNull(session.room_from),
      roomSeconds: wholeSeconds(numberOrNull(session.memory_wait_seconds)),
      device: textOrNull(session.device),
      host: textOrNull(session.host),
      remainingSeconds: KNOWN_FROM.includes(session.remaining_from) ? numberOrNull(session.remaining_seconds) : null,
      ...memory(session)
    })),
    placement: textOrNull(fields.placement),
    draining: isNothing(fields.draining) ? null : parseDraining(record<IDrainingFields>(fields.draining, 'draining')),
    roomRequests: isNothing(fields.room_requests)
      ? []
      : list<IRoomRequestFields>(fields.room_requests, 'room_requests').map(request => ({
          session: text(request.session, 'room_requests.session'),
          owner: text(request.owner, 'room_requests.owner'),
          askingSession: text(request.asking_session, 'room_requests.asking_session'),
          askedBy: text(request.asked_by, 'room_requests.asked_by')
        }))
  };
}

/** Kinds of what a large cluster's document may leave out. */
const LEFT_OUT = ['hosts', 'devices', 'sessions', 'users'] as const;

function parseHost(fields: Fields<IHostEntry>): IHost {
  return {
    name: text(fields.name, 'hosts.name'),
    isAnswering: fields.answering === true,
    trouble: textOrNull(fields.message),
    isCordoned: fields.cordoned === true,
    isDrained: fields.drained === true,
    isInRay: typeof fields.in_ray === 'boolean' ? fields.in_ray : null,
    version: textOrNull(fields.version),
    numDevices: amount(fields.num_devices),
    numSessions: amount(fields.num_sessions)
  };
}

function parseDraining(fields: Fields<IDrainingFields>): IDraining {
  return { cells: amount(fields.cells), until: momentOrNull(fields.until) };
}

function severalHosts(hosts: IHost[]): IHost[] {
  return hosts.length > 1 ? hosts : [];
}

function userMemory(fields: Fields<IUserStatus> | Fields<IUserOnDevice>): IUserMemory {
  const found = memory(fields);
  const shelfBytes = amount(fields.shelf_bytes);
  const inUse = found.persistentBytes + found.ephemeralBytes + shelfBytes;
  const counted = fields.quota_used_bytes;
  return { ...found, shelfBytes, quotaUsedBytes: isNothing(counted) ? inUse : amount(counted) };
}

function memory(fields: Fields<Pick<IUserStatus, 'persistent_bytes' | 'framework_bytes' | 'live_bytes'>>): IMemory {
  return {
    persistentBytes: amount(fields.persistent_bytes),
    ephemeralBytes: amount(fields.live_bytes),
    frameworkBytes: amount(fields.framework_bytes)
  };
}

function isNothing(value: unknown): boolean {
  return value === null || value === undefined;
}

function record<T>(value: unknown, name: string): Fields<T> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new ViewError(`${name} is no object`);
  }
  return value;
}

function list<T>(value: unknown, name: string): Fields<T>[] {
  if (!Array.isArray(value)) {
    throw new ViewError(`${name} is no list`);
  }
  return value.map(entry => record<T>(entry, `an entry of ${name}`));
}

function text(value: unknown, name: string): string {
  if (typeof value !== 'string') {
    throw new ViewError(`${name} is no text`);
  }
  return value;
}

function textOrNull(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function numberOrNull(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

/** Of seconds since 1970. */
function momentOrNull(value: unknown): Date | null {
  const seconds = numberOrNull(value);
  return seconds === null ? null : new Date(seconds * 1000);
}

function wholeSeconds(seconds: number | null): number | null {
  return seconds === null ? null : Math.max(1, Math.round(seconds));
}

function minutes(seconds: number | null): number | null {
  return seconds === null ? null : Math.ceil(seconds / 60);
}

/** Sizes and counts: what is missing, as from an older gateway, counts as none. */
function amount(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) && value > 0 ? value : 0;
}
