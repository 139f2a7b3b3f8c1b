/** Notices sessions that end while their kernels, which are of this Jupyter server, stay: somebody else ended them. */

import { isShutDown } from './describe';
import type { ISession, IView } from './view';

/** Milliseconds that a kernel may take to follow its session, or to get another one. */
export const PATIENCE = 4_000;

/** A session that has ended, or lingers. */
export interface IEnd {
  kernel: string;
  /** As it was when it was last seen, or as it lingers. */
  session: ISession;
}

export class EndWatcher {
  /** Return the sessions of this user that have ended more than PATIENCE ago, each once; none that a restart left. */
  follow(view: IView, now: number): IEnd[] {
    const { status } = view;
    const user = view.user?.name ?? null;
    if (user !== null && user !== this._user) {
      this._user = user;
      this._known.clear();
      this._missing.clear();
    }
    if (view.gateway.state !== 'connected' || status === null) {
      this._missing.clear(); // a session that is not listed may still be there
      return [];
    }
    /** Whether all sessions of a device are listed: it is, and its executor answers. */
    const isListed = (name: string | null) =>
      status.devices.length === 0 || status.devices.some(device => device.name === name && device.trouble === null);
    const sessions = new Map(status.sessions.map(session => [session.id, session]));
    for (const [kernel, id] of view.kernels) {
      const session = sessions.get(id);
      if (session !== undefined && !isShutDown(session) && session.user === user) {
        this._known.set(kernel, session);
        this._missing.delete(kernel);
      }
    }
    const ends: IEnd[] = [];
    for (const [kernel, known] of this._known) {
      const session = sessions.get(known.id);
      if (session !== undefined && !isShutDown(session)) {
        this._missing.delete(kernel);
        if (view.kernels.get(kernel) !== known.id) {
          this._known.delete(kernel);
        }
        continue;
      }
      if (!isListed(known.device)) {
        this._missing.delete(kernel);
        continue;
      }
      const since = this._missing.get(kernel) ?? now;
      this._missing.set(kernel, since);
      if (now - since >= PATIENCE) {
        this._known.delete(kernel);
        this._missing.delete(kernel);
        if (session?.restarted !== true) {
          ends.push({ kernel, session: session ?? known });
        }
      }
    }
    return ends;
  }

  /** Whether a session is missed whose end is not told yet. */
  get isWaiting(): boolean {
    return this._missing.size > 0;
  }

  private _user: string | null = null;
  /** The session that each kernel had when it was last seen. */
  private _known = new Map<string, ISession>();
  /** Since when each kernel's is not there. */
  private _missing = new Map<string, number>();
}
