/** The gateway's routes, as its own page asks for them: by a cookie, with Jupyter's protection against forged requests. */

import type { IChannel } from '../connection';
import { IAdminApi, ILimits, NO_ANSWER, readLimits, readLinger, readPolicies, RefusedError } from '../limits';
import { ITimelineApi, IWindow, timelineQuery } from '../timeline';
import type { ISession } from '../view';
import { IAudit, readAudit } from './audit';

/** Who looks at the page. */
export interface IMe {
  user: string;
  admin: boolean;
  /** How people sign in: with tokens made here (`token`) or by the hub (`hub`), or the only user's (`single`). */
  auth: string;
  version: string;
  /** What connects a machine, without a token. */
  installCommand: string;
  needsCheckout: boolean;
  /** The command trusts the gateway's certificate by its fingerprint. */
  checksFingerprint: boolean;
}

/** A class that is here. */
export interface IClass {
  name: string;
  until: Date;
  isEnding: boolean;
  /** The names of its people, and of those who have not used their invitation. */
  members: string[];
  waiting: string[];
}

/** What lets one person in. */
export interface IInvited {
  user: string;
  /** A link, or the token of somebody without an end. */
  secret: string;
}

/** Nobody is signed in. */
export class SignInNeededError extends RefusedError {}

export const SIGN_IN = 'sharedkernel/page/sign-in';

export class PageApi implements IAdminApi, ITimelineApi {
  /** Return who is signed in. */
  async me(): Promise<IMe> {
    const answer = (await request('GET', 'sharedkernel/page/me')) as Record<string, unknown> | null;
    const text = (name: string) => {
      const value = answer?.[name];
      return typeof value === 'string' ? value : '';
    };
    return {
      user: text('user'),
      admin: answer?.admin === true,
      auth: text('auth'),
      version: text('version'),
      installCommand: text('install_command'),
      needsCheckout: answer?.needs_checkout === true,
      checksFingerprint: answer?.checks_fingerprint === true
    };
  }

  /** Open the stream of status documents. */
  openFigures(): IChannel {
    return new FiguresChannel('sharedkernel/page/figures');
  }

  /** Return the last hour as the gateway has it; null where it keeps none. */
  async history(): Promise<unknown> {
    try {
      return await request('GET', 'sharedkernel/api/history');
    } catch (error) {
      if (error instanceof SignInNeededError) {
        throw error;
      }
      return null;
    }
  }

  /** Return the audit log's newest entries, of people whose names contain a text. */
  async audit(user: string): Promise<IAudit> {
    return readAudit(await request('GET', `sharedkernel/api/audit?user=${encodeURIComponent(user)}`));
  }

  async timeline(window: IWindow, columns: number): Promise<unknown> {
    return request('GET', `sharedkernel/api/timeline?${timelineQuery(window, columns)}`);
  }

  /** Return a fresh token for another machine. */
  async newToken(): Promise<string> {
    const answer = (await request('POST', 'sharedkernel/page/token', {})) as { token?: unknown } | null;
    return typeof answer?.token === 'string' ? answer.token : '';
  }

  /** End the signed-in session. */
  async signOut(): Promise<void> {
    await request('POST', 'sharedkernel/page/sign-out', {});
  }

  /** Move an idle session's memory away until its next cell. */
  async offload(session: ISession): Promise<void> {
    await request('POST', `sharedkernel/api/sessions/${kernelOf(session)}/offload`, {});
  }

  /** End the programs that a session started and that use the device. */
  async endPrograms(session: ISession): Promise<void> {
    await request('POST', `sharedkernel/api/sessions/${kernelOf(session)}/end-programs`, {});
  }

  /** Interrupt what a session runs. */
  async interrupt(session: ISession): Promise<void> {
    await request('POST', `api/kernels/${kernelOf(session)}/interrupt`, {});
  }

  /** Ask the owners of idle memory to make room for a waiting session. */
  async askForRoom(session: ISession): Promise<void> {
    await request('POST', `sharedkernel/api/sessions/${kernelOf(session)}/ask-for-room`, {});
  }

  /** Bring back the earlier session of a session's notebook, in its place. */
  async bringBack(session: ISession): Promise<void> {
    await request('POST', `sharedkernel/api/sessions/${kernelOf(session)}/attach`, {});
  }

  /** Return for how many seconds a user's session that was shut down can be brought back; null where nobody knows. */
  async linger(user: string): Promise<number | null> {
    return readLinger(await request('GET', 'sharedkernel/api/quotas').catch(() => null), user);
  }

  /** Shut a session down, or end one that was shut down. */
  async shutDown(session: ISession): Promise<void> {
    // A session that was shut down has no kernel any more.
    const path = session.lingering ? `${encodeURIComponent(session.id)}?linger=0` : kernelOf(session);
    await request('DELETE', `api/kernels/${path}`);
  }

  /** Return the classes that are here. */
  async classes(): Promise<IClass[]> {
    return readClasses(await request('GET', 'sharedkernel/api/class'));
  }

  /** Begin a class of people, until a moment (ISO 8601), with limits of each. */
  async beginClass(
    name: string,
    users: readonly string[],
    until: string,
    limits: Record<string, string>
  ): Promise<IInvited[]> {
    return readInvited(await request('PUT', classPath(name), { users, until, limits }));
  }

  /** Invite people to a class; `replaces`: tokens end that earlier links of theirs gave. */
  async inviteMore(name: string, users: readonly string[], replaces?: true): Promise<IInvited[]> {
    return readInvited(await request('POST', classPath(name), { users, replaces }));
  }

  /** Have a class end at another moment (ISO 8601). */
  async moveEnd(name: string, until: string): Promise<void> {
    await request('PATCH', classPath(name), { until });
  }

  /** Return the names in a roster, or in a line of names. */
  async readRoster(text: string): Promise<string[]> {
    return ((await request('POST', 'sharedkernel/api/roster', { text })) as { users: string[] }).users;
  }

  /** Let people in who are in no class, without an end. */
  async addPeople(users: readonly string[]): Promise<IInvited[]> {
    const { tokens } = (await request('POST', 'sharedkernel/api/people', { users })) as {
      tokens?: Record<string, string>;
    };
    return Object.entries(tokens ?? {}).map(([user, secret]) => ({ user, secret }));
  }

  /** End a class now, with its sessions; return what has ended, in a sentence. */
  async endClass(name: string): Promise<string> {
    return ((await request('DELETE', classPath(name))) as { message: string }).message;
  }

  async limits(): Promise<Map<string, ILimits>> {
    return readLimits(await request('GET', 'sharedkernel/api/quotas'));
  }

  /** Have what the configuration says in the place of a limit that was set by hand; return everybody's limits. */
  async resetLimit(user: string, key: string): Promise<Map<string, ILimits>> {
    const query = new URLSearchParams({ user, key }).toString();
    return readLimits(await request('DELETE', `sharedkernel/api/quotas?${query}`));
  }

  async changeLimits(user: string, limits: Partial<ILimits>): Promise<Map<string, ILimits>> {
    return readLimits(await request('PUT', 'sharedkernel/api/quotas', { users: { [user]: limits } }));
  }

  async policies(): Promise<string[]> {
    return readPolicies(await request('GET', 'sharedkernel/api/policy'));
  }

  async setPolicy(policy: string): Promise<string[]> {
    return readPolicies(await request('PUT', 'sharedkernel/api/policy', { policy }));
  }
}

function kernelOf(session: ISession): string {
  return encodeURIComponent(session.kernel_id ?? session.id);
}

function classPath(name: string): string {
  return `sharedkernel/api/class?group=${encodeURIComponent(name)}`;
}

function readInvited(answer: unknown): IInvited[] {
  const { codes, invitation_path: path } = answer as { codes?: Record<string, string>; invitation_path?: string };
  return Object.entries(codes ?? {}).map(([user, code]) => ({
    user,
    secret: new URL(`${path}#${code}`, document.baseURI).href
  }));
}

/** Return the classes that an answer describes. */
export function readClasses(answer: unknown): IClass[] {
  const found = (answer as { classes?: Record<string, Record<string, unknown> | null> } | null)?.classes ?? {};
  return Object.entries(found).flatMap(([name, entry]) => {
    const until = new Date(String(entry?.until));
    const users = Object.entries((entry?.users ?? {}) as Record<string, { joined?: unknown } | null>);
    const waiting = users.filter(([, user]) => typeof user?.joined !== 'string').map(([user]) => user);
    const members = users.map(([user]) => user);
    return isNaN(until.getTime()) ? [] : [{ name, until, isEnding: entry?.ending === true, members, waiting }];
  });
}

/** Ask the gateway, and return its answer. */
export async function request(method: string, path: string, body?: unknown): Promise<unknown> {
  const headers: Record<string, string> = { Accept: 'application/json' };
  if (method !== 'GET') {
    headers['Content-Type'] = 'application/json';
    headers['X-XSRFToken'] = xsrfToken(document.cookie);
  }
  const init = { method, headers, body: body === undefined ? null : JSON.stringify(body) };
  const response = await fetch(new URL(path, document.baseURI), init).catch(() => {
    throw new RefusedError('The gateway does not answer; try again.', NO_ANSWER);
  });
  if (response.status === 401) {
    throw new SignInNeededError('Please sign in again.', response.status);
  }
  const answer: unknown = await response.json().catch(() => null);
  if (!response.ok) {
    const message = (answer as { message?: unknown } | null)?.message;
    throw new RefusedError(
      typeof message === 'string' && message ? message : `${response.status} ${response.statusText}`,
      response.status
    );
  }
  return answer;
}

/** Return the value of Jupyter's cookie against forged requests; empty where there is none. */
export function xsrfToken(cookies: string): string {
  for (const cookie of cookies.split('; ')) {
    if (cookie.startsWith('_xsrf=')) {
      return decodeURIComponent(cookie.slice('_xsrf='.length));
    }
  }
  return '';
}

/** Milliseconds without a word after which a stream counts as broken; a gateway sends one every five seconds. */
const SILENCE = 16_000;

/** Server-sent events as a channel, so that the page reconnects as JupyterLab's panel does. */
class FiguresChannel implements IChannel {
  onmessage: IChannel['onmessage'] = null;
  onclose: IChannel['onclose'] = null;

  constructor(path: string) {
    this._source = new EventSource(new URL(path, document.baseURI));
    const self = this as unknown as WebSocket;
    const end = () => {
      this.close();
      this.onclose?.call(self, new CloseEvent('close'));
    };
    const expectMore = () => {
      clearTimeout(this._timer);
      this._timer = setTimeout(end, SILENCE);
    };
    expectMore();
    this._source.onmessage = (event: MessageEvent<string>) => {
      expectMore();
      this.onmessage?.call(self, event);
    };
    this._source.addEventListener('alive', expectMore);
    this._source.onerror = end;
  }

  close(): void {
    clearTimeout(this._timer);
    this._source.close();
  }

  private readonly _source: EventSource;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}
