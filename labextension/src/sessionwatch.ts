/** What a page has seen of sessions over time: who takes turns on the device, and for how long the others have waited. */

import { isShutDown } from './describe';
import type { ISession, IStatus } from './view';
import { waitsForMemory } from './words';

/** Milliseconds after its last turn until a session that waits for the next one counts as waiting. */
const TURN = 2000;

interface ISeen {
  serviceSeconds: number;
  /** When it ran last, and since when it has waited; milliseconds of a clock that only goes forward. */
  ranAt: number;
  waitsSince: number | null;
}

export class SessionWatch {
  /** Return a status with what is known of its sessions at a time in milliseconds. */
  see(status: IStatus, now: number): IStatus {
    const seen = new Map<string, ISeen>();
    const sessions = status.sessions.map(session => {
      const before = this._seen.get(session.id);
      const service = session.attained_service_seconds;
      const hasRun = session.computing || (before !== undefined && service > before.serviceSeconds);
      const ranAt = hasRun ? now : (before?.ranAt ?? -Infinity);
      const isInLine = session.queue_position !== null || session.state === 'queued';
      const takesTurns = isInLine && !waitsForMemory(session) && now - ranAt < TURN;
      const computing = !isShutDown(session) && (session.computing || takesTurns);
      const waits = !computing && !isShutDown(session) && (isInLine || waitsForMemory(session));
      const waitsSince = waits ? (before?.waitsSince ?? now) : null;
      seen.set(session.id, { serviceSeconds: service, ranAt, waitsSince });
      const waited_minutes = waitsSince === null ? 0 : Math.floor((now - waitsSince) / 60_000);
      return { ...session, computing, waited_minutes } satisfies ISession;
    });
    this._seen = seen;
    return { ...status, sessions };
  }

  private _seen = new Map<string, ISeen>();
}
