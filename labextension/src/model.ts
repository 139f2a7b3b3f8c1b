/**
 * What the page knows of the shared device: one model for all that is shown.
 *
 * It takes in every message but tells of at most one per refresh interval, the first one at once and the last one
 * always, so that a busy device does not keep a page busy.
 */

import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import type { Units } from './format';
import { SessionWatch } from './sessionwatch';
import { EMPTY_VIEW, ISession, IView, parseView, VersionError, ViewError } from './view';

/** What is wrong between this page and its Jupyter server; null: nothing. */
export type PageProblem = 'absent' | 'lost' | 'version' | 'garbage' | null;

export class DeviceModel implements IDisposable {
  /** What is known; the last of it while something is wrong. */
  get view(): IView {
    return this._view;
  }

  get problem(): PageProblem {
    return this._problem;
  }

  /** The kernel of the notebook that the user looks at; null: none. */
  get currentKernel(): string | null {
    return this._currentKernel;
  }

  set currentKernel(kernel: string | null) {
    if (kernel !== this._currentKernel) {
      this._currentKernel = kernel;
      this._changed.emit();
    }
  }

  /** The session of that notebook; null when its kernel is not shared. */
  get currentSession(): ISession | null {
    return this._currentKernel === null ? null : (this.session(this._view.kernels.get(this._currentKernel)) ?? null);
  }

  /** Whether figures are those of now. */
  get isLive(): boolean {
    return this._problem === null && this._view.gateway.state === 'connected';
  }

  /** Since when the problem is there; null: there is none. */
  get problemSince(): Date | null {
    return this._problemSince;
  }

  /** When figures were those of now; null: they are, or there never were any. */
  get asOf(): Date | null {
    return this.isLive ? null : this._asOf;
  }

  get units(): Units {
    return this._units;
  }

  set units(units: Units) {
    this._units = units;
    this._changed.emit();
  }

  /** Whether the user wants notifications of the browser. */
  get notifies(): boolean {
    return this._notifies;
  }

  set notifies(notifies: boolean) {
    this._notifies = notifies;
    this._changed.emit();
  }

  /** Shortest time between two signals, in milliseconds. */
  refreshInterval = 100;

  /** Emitted when anything above has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this._disposed = true;
    clearTimeout(this._timer);
    Signal.clearData(this);
  }

  /** Return a session of the status document. */
  session(id: string | null | undefined): ISession | undefined {
    return this._view.status?.sessions.find(session => session.id === id);
  }

  /** Return the kernel of this Jupyter server behind which a session is; undefined when it is elsewhere. */
  kernelOf(session: string): string | undefined {
    for (const [kernel, other] of this._view.kernels) {
      if (other === session) {
        return kernel;
      }
    }
    return undefined;
  }

  /** Take in a message of the Jupyter server. */
  receive(text: string): void {
    const before = this._problem;
    try {
      const view = parseView(text);
      const status = view.status && this._watch.see(view.status, performance.now());
      this._view = keepUnchanged(this._view, { ...view, status });
      this._problem = null;
    } catch (error) {
      if (!(error instanceof ViewError)) {
        throw error;
      }
      this._problem = error instanceof VersionError ? 'version' : 'garbage';
    }
    this._noteMoment(before);
    this._tellSoon();
  }

  /** Note that the Jupyter server cannot be reached; `heard`: it could before. */
  lose(heard: boolean): void {
    const problem = heard || this._problem === 'lost' || this._view !== EMPTY_VIEW ? 'lost' : 'absent';
    if (problem !== this._problem) {
      const before = this._problem;
      this._problem = problem;
      this._noteMoment(before);
      this._tellSoon();
    }
  }

  /** Note since when it is so, after a change; `before` is what the problem was. */
  private _noteMoment(before: PageProblem): void {
    if (this._problem !== before) {
      this._problemSince = this._problem === null ? null : new Date();
    }
    const isLive = this.isLive;
    if (this._wasLive && !isLive) {
      this._asOf = new Date();
    }
    const { since } = this._view.gateway;
    if (!isLive && since !== null && this._asOf !== null && since < this._asOf) {
      this._asOf = since;
    }
    this._wasLive = isLive;
  }

  private _tellSoon(): void {
    if (this._timer !== undefined) {
      return;
    }
    const pause = this._toldAt + this.refreshInterval - performance.now();
    if (pause <= 0) {
      this._tell();
    } else {
      this._timer = setTimeout(() => this._tell(), pause);
    }
  }

  private _tell(): void {
    this._timer = undefined;
    this._toldAt = performance.now();
    this._changed.emit();
  }

  private _asOf: Date | null = null;
  private _changed = new Signal<this, void>(this);
  private _currentKernel: string | null = null;
  private _disposed = false;
  private _notifies = false;
  private _problem: PageProblem = null;
  private _problemSince: Date | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _toldAt = -Infinity;
  private _units: Units = 'binary';
  private _view: IView = EMPTY_VIEW;
  private _wasLive = false;
  private readonly _watch = new SessionWatch();
}

/** Return the new view with the old one's session objects where nothing about them has changed: they need no drawing. */
function keepUnchanged(old: IView, view: IView): IView {
  if (old.status === null || view.status === null) {
    return view;
  }
  const known = new Map(old.status.sessions.map(session => [session.id, session]));
  const sessions = view.status.sessions.map(session => {
    const before = known.get(session.id);
    return before !== undefined && isSame(before, session) ? before : session;
  });
  return { ...view, status: { ...view.status, sessions } };
}

function isSame(one: ISession, other: ISession): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}
