/** The Jupyter server's routes for the shared device. */

import { URLExt } from '@jupyterlab/coreutils';
import type { IOutput } from '@jupyterlab/nbformat';
import { ServerConnection } from '@jupyterlab/services';

import type { IChannel } from './connection';
import { IAdminApi, ILimits, NO_ANSWER, readLimits, readLinger, readPolicies, RefusedError } from './limits';
import { ITimelineApi, IWindow, timelineQuery } from './timeline';

/** Of the Jupyter server's routes for the shared device. */
const ROOT = 'sharedkernel/api';

/** Return the settings with which JupyterLab's services reach the user's server on the gateway's host. */
export function hostSettings(settings: ServerConnection.ISettings): ServerConnection.ISettings {
  const below = (url: string) => URLExt.join(url, ROOT, 'host/');
  return { ...settings, baseUrl: below(settings.baseUrl), wsUrl: below(settings.wsUrl) };
}

/** What one run of a cell has shown, as the Jupyter server keeps it. */
export interface IKeptCell {
  id: string;
  code: string;
  executionCount: number | null;
  outputs: IOutput[];
  /** Whether it still runs. */
  open: boolean;
  /** Whether it ended while no page was there. */
  missed: boolean;
  /** The `input_request` for whose answer it waits. */
  question: { header: object; content: { prompt: string; password: boolean } } | null;
}

/** A port of the host on which a program of the user's listens. */
export interface IPort {
  port: number;
  program: string;
}

/** A copy of a file or folder between the Jupyter server's machine and the gateway's host. */
export interface ICopy {
  from: string;
  to: string;
  toHost: boolean;
  /** Whether files that exist are replaced. */
  overwrite: boolean;
}

/** Bytes of the file that is being copied. */
export interface IProgress {
  name: string;
  done: number;
  total: number;
}

export class Api implements IAdminApi, ITimelineApi {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** Open the websocket that tells what changes. */
  openEvents(): IChannel {
    const { wsUrl, token, appendToken, WebSocket } = this._settings;
    const query = appendToken && token ? `?token=${encodeURIComponent(token)}` : '';
    return new WebSocket(URLExt.join(wsUrl, ROOT, 'events') + query);
  }

  /** Return the address of the gateway that is kept, and who decides it where the user cannot. */
  async gateway(): Promise<{ url: string; decided: string | null }> {
    return (await this._request('GET', 'gateway')) as { url: string; decided: string | null };
  }

  /** Connect this Jupyter server to another gateway. */
  async connect(typed: { url: string; token: string; fingerprint: string }): Promise<void> {
    await this._request('POST', 'gateway', typed);
  }

  /** Disconnect this Jupyter server from its gateway. */
  async disconnect(): Promise<void> {
    await this._request('DELETE', 'gateway');
  }

  /** Move an idle session's memory away until its next cell. */
  async offload(session: string): Promise<void> {
    await this._request('POST', `sessions/${session}/offload`, {});
  }

  /** End the programs that a session started and that use the device. */
  async endPrograms(session: string): Promise<void> {
    await this._request('POST', `sessions/${session}/end-programs`, {});
  }

  /** Interrupt what a session runs. */
  async interrupt(session: string): Promise<void> {
    await this._request('POST', `sessions/${session}/interrupt`, {});
  }

  /** Ask the owners of idle memory to make room for a waiting session. */
  async askForRoom(session: string): Promise<void> {
    await this._request('POST', `sessions/${session}/ask-for-room`, {});
  }

  /** Bring back the earlier session of a session's notebook, in its place. */
  async bringBack(session: string): Promise<void> {
    await this._request('POST', `sessions/${session}/attach`, {});
  }

  /** Return for how many seconds a user's session that was shut down can be brought back; null where nobody knows. */
  async linger(user: string): Promise<number | null> {
    return readLinger(await this._request('GET', 'quotas').catch(() => null), user);
  }

  /** Shut a session down, or end one that was shut down. */
  async shutDown(session: string): Promise<void> {
    await this._request('DELETE', `sessions/${session}`);
  }

  /** Return everybody's limits, by name. */
  async limits(): Promise<Map<string, ILimits>> {
    return readLimits(await this._request('GET', 'quotas'));
  }

  /** Change some of one user's limits, and return everybody's. */
  async changeLimits(user: string, limits: Partial<ILimits>): Promise<Map<string, ILimits>> {
    const changes = { users: { [user]: limits } };
    return readLimits(await this._request('PUT', 'quotas', changes));
  }

  /** Return the policies that there are. */
  async policies(): Promise<string[]> {
    return readPolicies(await this._request('GET', 'policy'));
  }

  /** Let another policy rank, and return those that there are. */
  async setPolicy(policy: string): Promise<string[]> {
    return readPolicies(await this._request('PUT', 'policy', { policy }));
  }

  async timeline(window: IWindow, columns: number): Promise<unknown> {
    return this._request('GET', `timeline?${timelineQuery(window, columns)}`);
  }

  /** Return the ports on which the user's programs listen, and whether the Jupyter server makes ports paths of its own. */
  async ports(): Promise<{ ports: IPort[]; is_proxied: boolean }> {
    return (await this._request('GET', 'ports')) as { ports: IPort[]; is_proxied: boolean };
  }

  /** Return the address at which the Jupyter server serves a port of its machine. */
  proxied(port: number): string {
    return URLExt.join(this._settings.baseUrl, 'proxy', `${port}/`);
  }

  /** Forward a port of the host to the Jupyter server's machine, and return its number there. */
  async forward(port: number): Promise<number> {
    return ((await this._request('POST', 'ports', { port })) as { local_port: number }).local_port;
  }

  /** Return the path and the bytes of a file beside a notebook of the Jupyter server; null: there is none. */
  async localFile(notebook: string, name: string): Promise<{ path: string; size: number } | null> {
    const query = URLExt.objectToQueryString({ notebook, name });
    return this._request('GET', `local-file${query}`).catch(() => null) as Promise<{
      path: string;
      size: number;
    } | null>;
  }

  /** Copy, telling of progress; return why it was not done, with nothing where it was. */
  async copy(
    { from, to, toHost, overwrite }: ICopy,
    onProgress: (progress: IProgress) => void,
    signal: AbortSignal
  ): Promise<{ message?: string; reason?: string; links?: number }> {
    const url = URLExt.join(this._settings.baseUrl, ROOT, 'copies');
    const body = JSON.stringify({ from, to, to_host: toHost, overwrite });
    const response = await ServerConnection.makeRequest(url, { method: 'POST', body, signal }, this._settings);
    let rest = '';
    let last: Partial<IProgress> & { ended?: boolean; message?: string; reason?: string; links?: number } = {};
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader?.read(); part?.value !== undefined; part = await reader?.read()) {
      const lines = (rest + part.value).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        last = JSON.parse(line) as typeof last;
        if (last.total !== undefined) {
          onProgress(last as IProgress);
        }
      }
    }
    if (!response.ok) {
      return JSON.parse(rest) as { message: string };
    }
    return last.ended === true
      ? last
      : { message: 'The connection was closed; copy it again: it goes on where it was cut.' };
  }

  /** Return what a kernel's cells have shown since a version, and the version now. */
  async keptCells(kernel: string, after: number): Promise<{ version: number; cells: IKeptCell[] }> {
    const answer = (await this._request('GET', `kernels/${kernel}/cells?after=${after}`)) as {
      version?: number;
      cells?: Array<Omit<IKeptCell, 'executionCount'> & { execution_count: number | null }>;
    } | null;
    return {
      version: answer?.version ?? 0,
      cells: (answer?.cells ?? []).map(cell => ({ ...cell, executionCount: cell.execution_count }))
    };
  }

  private async _request(method: string, path: string, body?: unknown): Promise<unknown> {
    const url = URLExt.join(this._settings.baseUrl, ROOT, path);
    const init = {
      method,
      body: body === undefined ? null : JSON.stringify(body)
    };
    const response = await ServerConnection.makeRequest(url, init, this._settings).catch(() => {
      throw new RefusedError('The Jupyter server does not answer; try again.', NO_ANSWER);
    });
    const answer: unknown = await response.json().catch(() => null);
    if (!response.ok) {
      const message = (answer as { message?: unknown } | null)?.message;
      throw new RefusedError(
        typeof message === 'string' && message ? message : `${response.status} ${response.statusText}`,
        response.status,
        answer
      );
    }
    return answer;
  }
}
