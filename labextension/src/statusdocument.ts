/**
 * The status document as the gateway sends it, made from `statusschema.json` by `make schema`: do not edit it.
 *
 * A field with a question mark may be absent. An older gateway may leave out others too, and a newer one may send more.
 */

/** One of several devices; most of it is null while its executor does not answer. */
export interface IDeviceEntry {
  description?: string | null;
  lanes_shared?: boolean;
  lanes_shared_reason?: string;
  policy_summary?: string;
  waits_foreseen_by?: string | null;
  isolation?: string;
  isolation_note?: string;
  uuid?: string;
  driver_version?: string | null;
  memory_mode?: string;
  self_test?: string | null;
  shared_units_bytes?: number;
  mps?: string;
  mps_note?: string | null;
  process_checkpoint?: string;
  utilisation?: number | null;
  temperature_celsius?: number | null;
  power_watts?: number | null;
  power_limit_watts?: number | null;
  physical_used_bytes?: number | null;
  nvml?: string;
  nvml_note?: string | null;
  name: string;
  kind: string | null;
  capacity_bytes: number | null;
  reserve_bytes: number | null;
  used_bytes: number | null;
  policy: string | null;
  quantum_seconds: number | null;
  available: boolean;
  message: string | null;
  num_sessions: number;
  host?: string;
}

/** A device, or the sum of several. */
export interface IDeviceStatus {
  description?: string | null;
  lanes_shared?: boolean;
  lanes_shared_reason?: string;
  policy_summary?: string;
  waits_foreseen_by?: string | null;
  isolation?: string;
  isolation_note?: string;
  uuid?: string;
  driver_version?: string | null;
  memory_mode?: string;
  self_test?: string | null;
  shared_units_bytes?: number;
  mps?: string;
  mps_note?: string | null;
  process_checkpoint?: string;
  utilisation?: number | null;
  temperature_celsius?: number | null;
  power_watts?: number | null;
  power_limit_watts?: number | null;
  physical_used_bytes?: number | null;
  nvml?: string;
  nvml_note?: string | null;
  name: string;
  kind: string;
  capacity_bytes: number;
  reserve_bytes: number;
  used_bytes: number;
  policy: string;
  quantum_seconds: number;
}

/** A gateway starts no more sessions, and stops once the cells that run have ended. */
export interface IDraining {
  cells: number;
  until: number | null;
}

/** One of several hosts. */
export interface IHostEntry {
  name: string;
  answering: boolean | null;
  message: string | null;
  version: string | null;
  num_devices: number;
  num_sessions: number | null;
  cordoned: boolean | null;
  drained: boolean | null;
  in_ray: boolean | null;
  adopted: boolean | null;
}

/** A lane. */
export interface ILaneStatus {
  id: number;
  size_bytes: number;
  holder: string | null;
  queue: string[];
  number?: number;
  device?: string;
  host?: string;
}

/** How much of a large cluster a document leaves out. */
export interface ILeftOut {
  hosts: number;
  devices: number;
  lanes: number;
  sessions: number;
  users: number;
}

/** A user whose cell waits for memory asks for that of an idle session. */
export interface IRoomRequest {
  session: string;
  owner: string;
  bytes: number;
  asking_session: string;
  asked_by: string;
}

/** A session. */
export interface ISessionStatus {
  id: string;
  user: string;
  state: string;
  kernel_id: string | null;
  lingering: boolean;
  lingering_seconds: number | null;
  restarted: boolean;
  still_has: string[];
  idle_seconds: number;
  used: boolean;
  notebook: string | null;
  client_key: string | null;
  lane: number | null;
  lane_note: string | null;
  persistent_bytes: number;
  ephemeral_bytes: number | null;
  framework_bytes: number;
  live_bytes: number;
  iteration_bytes: number | null;
  offloaded_bytes: number;
  offload_note: string | null;
  offloads: number;
  restores: number;
  offload_seconds: number;
  restore_seconds: number;
  iterations: number;
  iteration_seconds: number | null;
  attained_service_seconds: number;
  ungranted_service_seconds: number;
  queue_position: number | null;
  waiting_for: string | null;
  memory_wait_seconds: number | null;
  needed_bytes: number | null;
  free_bytes: number | null;
  room_from: string | null;
  remaining_seconds: number | null;
  remaining_from: string | null;
  utilisation: number | null;
  utilisation_predicted: number | null;
  slowdown: number | null;
  slowdown_predicted: number | null;
  wait_p50_seconds: number | null;
  wait_p95_seconds: number | null;
  device?: string;
  host?: string;
}

/** A status document. */
export interface IStatusDocument {
  device: IDeviceStatus;
  lanes: ILaneStatus[];
  users: IUserStatus[];
  sessions: ISessionStatus[];
  devices?: IDeviceEntry[];
  placement?: string;
  hosts?: IHostEntry[];
  left_out?: ILeftOut;
  room_requests?: IRoomRequest[];
  draining?: IDraining;
}

/** A user's memory and quota on one of several devices; quotas are by device. */
export interface IUserOnDevice {
  device: string;
  quota_bytes: number | null;
  persistent_bytes: number;
  ephemeral_bytes: number;
  framework_bytes: number;
  live_bytes: number;
  shelf_bytes: number;
  quota_used_bytes: number | null;
}

/** A user; memory is the sum over their sessions. */
export interface IUserStatus {
  name: string;
  colour?: string;
  share: number;
  quota_bytes: number | null;
  persistent_bytes: number;
  ephemeral_bytes: number;
  framework_bytes: number;
  live_bytes: number;
  shelf_bytes: number;
  quota_used_bytes: number | null;
  offloaded_bytes: number;
  attained_service_seconds: number;
  iterations: number;
  peak_bytes: number | null;
  wait_p50_seconds: number | null;
  wait_p95_seconds: number | null;
  devices?: IUserOnDevice[];
}
