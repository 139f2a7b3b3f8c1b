/**
 * The page's websocket to its Jupyter server, opened again for as long as the page is there.
 */

import { IDisposable } from '@lumino/disposable';

/** Milliseconds between attempts: doubling from the first to the second. */
const RETRY_PAUSE: readonly [number, number] = [500, 5000];

/** What a websocket needs to have. */
export type IChannel = Pick<WebSocket, 'onmessage' | 'onclose' | 'close'>;

export interface IConnectionOptions {
  /** Make a websocket; called for each attempt. */
  open: () => IChannel;
  /** Called with each text that arrives. */
  onText: (text: string) => void;
  /** Called when an attempt failed (false) or a connection broke that something had arrived by (true). */
  onLost: (heard: boolean) => void;
}

/** One connection, over any number of websockets. */
export class Connection implements IDisposable {
  constructor(private readonly _options: IConnectionOptions) {
    this._open();
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this._disposed = true;
    clearTimeout(this._timer);
    const channel = this._channel;
    this._channel = null;
    channel?.close();
  }

  private _open(): void {
    const channel = this._options.open();
    let heard = false;
    this._channel = channel;
    channel.onmessage = event => {
      if (channel === this._channel && typeof event.data === 'string') {
        heard = true;
        this._pause = RETRY_PAUSE[0];
        this._options.onText(event.data);
      }
    };
    channel.onclose = () => {
      if (channel !== this._channel) {
        return;
      }
      this._channel = null;
      this._options.onLost(heard);
      // Spread: many pages lose one server at the same moment.
      const pause = this._pause * (0.7 + 0.6 * Math.random());
      this._pause = Math.min(2 * this._pause, RETRY_PAUSE[1]);
      this._timer = setTimeout(() => this._open(), pause);
    };
  }

  private _channel: IChannel | null = null;
  private _disposed = false;
  private _pause = RETRY_PAUSE[0];
  private _timer: ReturnType<typeof setTimeout> | undefined;
}
