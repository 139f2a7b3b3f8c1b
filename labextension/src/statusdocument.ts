/**
 * The status document as the pages read it: made by `make schema`, do not edit it.
 *
 * What an older gateway leaves out has its default, as in Python; what may be absent or unknown is null.
 */

import { isAmount, isFlag, isNumber, isText, list, maybe, need, or, Read, record } from './reading';

/** A device, or the sum of several. */
export type IDeviceStatus = Read<typeof readDeviceStatus>;
export const readDeviceStatus = record({
  description: or(isText, null),
  lanes_shared: or(isFlag, null),
  lanes_shared_reason: or(isText, null),
  policy_summary: or(isText, null),
  waits_foreseen_by: or(isText, null),
  isolation: or(isText, null),
  isolation_note: or(isText, null),
  uuid: or(isText, null),
  driver_version: or(isText, null),
  memory_mode: or(isText, null),
  self_test: or(isText, null),
  shared_units_bytes: or(isNumber, null),
  mps: or(isText, null),
  mps_note: or(isText, null),
  utilisation: or(isNumber, null),
  temperature_celsius: or(isNumber, null),
  power_watts: or(isNumber, null),
  power_limit_watts: or(isNumber, null),
  physical_used_bytes: or(isNumber, null),
  nvml: or(isText, null),
  nvml_note: or(isText, null),
  name: need(isText),
  kind: or(isText, ''),
  capacity_bytes: or(isAmount, 0),
  reserve_bytes: or(isAmount, 0),
  used_bytes: or(isAmount, 0),
  policy: or(isText, ''),
  quantum_seconds: or(isAmount, 0)
});

/** A lane. */
export type ILaneStatus = Read<typeof readLaneStatus>;
export const readLaneStatus = record({
  id: need(isAmount),
  size_bytes: or(isAmount, 0),
  holder: or(isText, null),
  queue: list(need(isText)),
  number: or(isNumber, null),
  device: or(isText, null),
  host: or(isText, null)
});

/** A user's memory and quota on one of several devices; quotas are by device. */
export type IUserOnDevice = Read<typeof readUserOnDevice>;
export const readUserOnDevice = record({
  quota_bytes: or(isNumber, null),
  persistent_bytes: or(isAmount, 0),
  ephemeral_bytes: or(isAmount, 0),
  framework_bytes: or(isAmount, 0),
  live_bytes: or(isAmount, 0),
  shelf_bytes: or(isAmount, 0),
  quota_used_bytes: or(isAmount, 0),
  device: need(isText)
});

/** A user; memory is the sum over their sessions. */
export type IUserStatus = Read<typeof readUserStatus>;
export const readUserStatus = record({
  quota_bytes: or(isNumber, null),
  persistent_bytes: or(isAmount, 0),
  ephemeral_bytes: or(isAmount, 0),
  framework_bytes: or(isAmount, 0),
  live_bytes: or(isAmount, 0),
  shelf_bytes: or(isAmount, 0),
  quota_used_bytes: or(isAmount, 0),
  name: need(isText),
  colour: or(isText, null),
  share: or(isAmount, 1),
  offloaded_bytes: or(isAmount, 0),
  attained_service_seconds: or(isAmount, 0),
  iterations: or(isAmount, 0),
  server_bytes: or(isAmount, 0),
  peak_bytes: or(isNumber, null),
  wait_p50_seconds: or(isNumber, null),
  wait_p95_seconds: or(isNumber, null),
  devices: list(readUserOnDevice)
});

/** A program that a session started and that uses the device. */
export type IProgramStatus = Read<typeof readProgramStatus>;
export const readProgramStatus = record({
  name: need(isText),
  processes: need(isAmount),
  bytes: need(isAmount),
  note: or(isText, null)
});

/** A session. */
export type ISessionStatus = Read<typeof readSessionStatus>;
export const readSessionStatus = record({
  id: need(isText),
  user: need(isText),
  state: need(isText),
  kernel_id: or(isText, null),
  lingering: or(isFlag, false),
  lingering_seconds: or(isNumber, null),
  restarted: or(isFlag, false),
  still_has: list(need(isText)),
  idle_seconds: or(isAmount, 0),
  used: or(isFlag, true),
  notebook: or(isText, null),
  client_key: or(isText, null),
  threads: or(isAmount, 0),
  programs: list(readProgramStatus),
  lane: or(isNumber, null),
  lane_note: or(isText, null),
  persistent_bytes: or(isAmount, 0),
  ephemeral_bytes: or(isAmount, 0),
  framework_bytes: or(isAmount, 0),
  live_bytes: or(isAmount, 0),
  iteration_bytes: or(isNumber, null),
  offloaded_bytes: or(isAmount, 0),
  offload_note: or(isText, null),
  offloads: or(isAmount, 0),
  restores: or(isAmount, 0),
  offload_seconds: or(isAmount, 0),
  restore_seconds: or(isAmount, 0),
  iterations: or(isAmount, 0),
  iteration_seconds: or(isNumber, null),
  attained_service_seconds: or(isAmount, 0),
  ungranted_service_seconds: or(isAmount, 0),
  queue_position: or(isNumber, null),
  waiting_for: or(isText, null),
  memory_wait_seconds: or(isNumber, null),
  needed_bytes: or(isNumber, null),
  free_bytes: or(isNumber, null),
  room_from: or(isText, null),
  remaining_seconds: or(isNumber, null),
  remaining_from: or(isText, null),
  time_left_seconds: or(isNumber, null),
  utilisation: or(isNumber, null),
  utilisation_predicted: or(isNumber, null),
  slowdown: or(isNumber, null),
  slowdown_predicted: or(isNumber, null),
  wait_p50_seconds: or(isNumber, null),
  wait_p95_seconds: or(isNumber, null),
  device: or(isText, null),
  host: or(isText, null)
});

/** One of several devices; most of it is null while its executor does not answer. */
export type IDeviceEntry = Read<typeof readDeviceEntry>;
export const readDeviceEntry = record({
  description: or(isText, null),
  lanes_shared: or(isFlag, null),
  lanes_shared_reason: or(isText, null),
  policy_summary: or(isText, null),
  waits_foreseen_by: or(isText, null),
  isolation: or(isText, null),
  isolation_note: or(isText, null),
  uuid: or(isText, null),
  driver_version: or(isText, null),
  memory_mode: or(isText, null),
  self_test: or(isText, null),
  shared_units_bytes: or(isNumber, null),
  mps: or(isText, null),
  mps_note: or(isText, null),
  utilisation: or(isNumber, null),
  temperature_celsius: or(isNumber, null),
  power_watts: or(isNumber, null),
  power_limit_watts: or(isNumber, null),
  physical_used_bytes: or(isNumber, null),
  nvml: or(isText, null),
  nvml_note: or(isText, null),
  name: need(isText),
  kind: or(isText, null),
  capacity_bytes: or(isNumber, null),
  reserve_bytes: or(isNumber, null),
  used_bytes: or(isNumber, null),
  policy: or(isText, null),
  quantum_seconds: or(isNumber, null),
  available: or(isFlag, true),
  message: or(isText, null),
  num_sessions: or(isAmount, 0),
  host: or(isText, null)
});

/** One of several hosts. */
export type IHostEntry = Read<typeof readHostEntry>;
export const readHostEntry = record({
  name: need(isText),
  answering: or(isFlag, null),
  message: or(isText, null),
  version: or(isText, null),
  num_devices: or(isAmount, 0),
  num_sessions: or(isNumber, null),
  cordoned: or(isFlag, null),
  drained: or(isFlag, null),
  in_ray: or(isFlag, null),
  adopted: or(isFlag, null)
});

/** The part of a large cluster that a document leaves out. */
export type ILeftOut = Read<typeof readLeftOut>;
export const readLeftOut = record({
  hosts: or(isAmount, 0),
  devices: or(isAmount, 0),
  lanes: or(isAmount, 0),
  sessions: or(isAmount, 0),
  users: or(isAmount, 0)
});

/** A user whose cell waits for memory asks for that of an idle session. */
export type IRoomRequest = Read<typeof readRoomRequest>;
export const readRoomRequest = record({
  session: need(isText),
  owner: need(isText),
  bytes: need(isAmount),
  asking_session: need(isText),
  asked_by: need(isText)
});

/** A gateway starts no more sessions, and stops once the cells that run have ended. */
export type IDraining = Read<typeof readDraining>;
export const readDraining = record({
  cells: need(isAmount),
  until: or(isNumber, null)
});

/** A status document. */
export type IStatusDocument = Read<typeof readStatusDocument>;
export const readStatusDocument = record({
  device: readDeviceStatus,
  lanes: list(readLaneStatus),
  users: list(readUserStatus),
  sessions: list(readSessionStatus),
  devices: list(readDeviceEntry),
  placement: or(isText, null),
  hosts: list(readHostEntry),
  left_out: maybe(readLeftOut),
  room_requests: list(readRoomRequest),
  draining: maybe(readDraining)
});
