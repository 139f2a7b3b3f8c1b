/** Notices when a user's long waits and long runs end, from one status document to the next. */

import { isShutDown } from './describe';
import type { ISession, IStatus } from './view';

/** Milliseconds: shorter waits and shorter runs are not worth a notification. */
export const LONG_WAIT = 10_000;
export const LONG_RUN = 30_000;

/** It is a session's turn, or its cell has ended. */
export interface ITurnNews {
  kind: 'turn' | 'end';
  session: ISession;
  /** How long it has waited or run, in milliseconds. */
  milliseconds: number;
}

/** What a session's open cell has done until now. */
interface ICell {
  since: number;
  /** When it was first seen on the device; null: not yet. */
  ranAt: number | null;
}

export class TurnWatcher {
  /**
   * Return what has changed for a user's sessions.
   *
   * A cell's turn is told once: while several sessions share the device, its turns come and go.
   */
  follow(status: IStatus, own: string | null, now: number): ITurnNews[] {
    const news: ITurnNews[] = [];
    const cells = new Map<string, ICell>();
    for (const session of status.sessions) {
      if (session.user !== own || isShutDown(session)) {
        continue;
      }
      const before = this._cells.get(session.id);
      if (session.state === 'idle' || session.state === 'offloaded' || session.state === 'dead') {
        const milliseconds = now - (before?.ranAt ?? now);
        if (milliseconds >= LONG_RUN) {
          news.push({ kind: 'end', session, milliseconds });
        }
        continue;
      }
      const cell = before ?? { since: now, ranAt: null };
      cells.set(session.id, cell);
      if (cell.ranAt === null && (session.state === 'running' || session.state === 'preempting')) {
        cell.ranAt = now;
        if (now - cell.since >= LONG_WAIT) {
          news.push({ kind: 'turn', session, milliseconds: now - cell.since });
        }
      }
    }
    this._cells = cells;
    return news;
  }

  /** Open cells by session. */
  private _cells = new Map<string, ICell>();
}
