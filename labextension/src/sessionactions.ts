import type { TranslationBundle } from '@jupyterlab/translation';

import { sessionName } from './describe';
import type { ISession } from './view';

/** The session of the same notebook that one which was shut down would take the place of; undefined: there is none. */
export function successorOf(session: ISession, sessions: readonly ISession[]): ISession | undefined {
  if (session.notebook === null) {
    return undefined;
  }
  return sessions.find(
    other =>
      other.id !== session.id &&
      !other.lingering &&
      other.kernel_id !== null &&
      other.user === session.user &&
      other.notebook === session.notebook
  );
}

/**
 * Return what to ask before a session is shut down.
 *
 * `seconds`: for how long it can be brought back; null where nobody knows.
 */
export function shutDownQuestion(
  session: ISession,
  seconds: number | null,
  trans: TranslationBundle
): IShutDownQuestion {
  const name = sessionName(session);
  if (session.lingering) {
    return {
      title: trans.__('End %1 for good?', name),
      text: session.restarted
        ? trans.__('It was left by a restart. Its variables and tensors will be gone.')
        : trans.__('It was shut down already. Its variables and tensors will be gone.'),
      agree: trans.__('End it')
    };
  }
  const title = trans.__('Shut down %1?', name);
  const agree = trans.__('Shut down');
  if (seconds === 0 || session.notebook === null) {
    const text = trans.__('Its variables and tensors will be gone. To free device memory only, offload it instead.');
    return { title, text, agree };
  }
  const text =
    seconds === null
      ? trans.__('For a while its variables can be brought back. To free device memory only, offload it instead.')
      : trans.__(
          'For %1 min its variables can be brought back. To free device memory only, offload it instead.',
          Math.max(1, Math.round(seconds / 60))
        );
  return { title, text, agree };
}

export interface IShutDownQuestion {
  title: string;
  text: string;
  /** The label of the button that agrees. */
  agree: string;
}

/** What a user can do with a session; JupyterLab's panel and the gateway's page each have their own way. */
export interface ISessionActions {
  /** Whether a session's notebook can be shown here. */
  canGoTo(session: ISession): boolean;
  /** Show a session's notebook. */
  goTo(session: ISession): Promise<void>;
  /** Move a session's memory away until its next cell. */
  offload(session: ISession): Promise<void>;
  /** End the programs that a session started and that use the device. */
  endPrograms(session: ISession): Promise<void>;
  /** Interrupt what a session runs. */
  interrupt(session: ISession): Promise<void>;
  /** Ask the owners of idle memory to make room for a waiting session. */
  askForRoom(session: ISession): Promise<void>;
  /** Whether the variables of a session that was shut down can be brought back from here. */
  canBringBack(session: ISession): boolean;
  /** Bring them back into its notebook. */
  bringBack(session: ISession): Promise<void>;
  /** Shut a session down, or end one that was shut down, if the user means it. */
  shutDown(session: ISession): Promise<void>;
}
