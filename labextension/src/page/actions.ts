/** What a user can do with a session, from the gateway's page. */

import { safeText, sessionName } from '../describe';
import { reasonOf } from '../limits';
import type { DeviceModel } from '../model';
import { ISessionActions, shutDownQuestion, successorOf } from '../sessionactions';
import type { ISession } from '../view';
import { IClass, IInvited, PageApi, SignInNeededError } from './api';
import { english as trans } from './english';
import { failureWords, forEach, notebooks, peopleWords } from './selection';

interface IHandlers {
  /** Ask something, and return whether the user agrees. */
  ask: (title: string, text: string, agree: string) => Promise<boolean>;
  /** Tell what did not work. */
  tell: (text: string) => void;
  /** Called when nobody is signed in any more. */
  signIn: () => void;
}

export class PageActions implements ISessionActions {
  constructor(
    private readonly _api: PageApi,
    private readonly _model: DeviceModel,
    private readonly _own: string,
    private readonly _handlers: IHandlers
  ) {}

  /** Notebooks are on their users' machines. */
  canGoTo(): boolean {
    return false;
  }

  async goTo(): Promise<void> {
    // There is nothing to show.
  }

  async offload(session: ISession): Promise<void> {
    await this.attempt(() => this._api.offload(session), trans.__('%1 could not be offloaded', sessionName(session)));
  }

  async endPrograms(session: ISession): Promise<void> {
    const failure = trans.__('Programs of %1 could not be ended', sessionName(session));
    await this.attempt(() => this._api.endPrograms(session), failure);
  }

  async interrupt(session: ISession): Promise<void> {
    await this.attempt(
      () => this._api.interrupt(session),
      trans.__('%1 could not be interrupted', sessionName(session))
    );
  }

  async askForRoom(session: ISession): Promise<void> {
    await this.attempt(() => this._api.askForRoom(session), trans.__('Nobody was asked'));
  }

  /** Whether its notebook has a new session that it can take the place of; notebooks are on their users' machines. */
  canBringBack(session: ISession): boolean {
    return this._successor(session) !== undefined;
  }

  async bringBack(session: ISession): Promise<void> {
    const successor = this._successor(session);
    if (successor !== undefined) {
      const failure = trans.__('%1 could not be brought back', sessionName(session));
      await this.attempt(() => this._api.bringBack(successor), failure);
    }
  }

  async shutDown(session: ISession): Promise<void> {
    const name = sessionName(session);
    const question = shutDownQuestion(session, await this._api.linger(session.user), trans);
    if (await this._handlers.ask(question.title, question.text, question.agree)) {
      await this.attempt(() => this._api.shutDown(session), trans.__('%1 could not be shut down', name));
    }
  }

  /**
   * Offload idle sessions, if the user means it; return whether it was done.
   *
   * `others` is how many of those that were selected are not idle; `tell` is told how far it is.
   */
  async offloadAll(sessions: readonly ISession[], others: number, tell: (progress: string) => void): Promise<boolean> {
    const title = trans.__('Offload %1?', notebooks(sessions.length));
    const kept = others === 0 ? '' : trans.__(' %1 more in use stay as they are.', others);
    const text = trans.__(
      'Of %1. Their memory leaves the device until their next cells; no variables are lost.%2',
      peopleWords(sessions),
      kept
    );
    if (!(await this._handlers.ask(title, text, trans.__('Offload %1', sessions.length)))) {
      return false;
    }
    const done = (count: number) => tell(trans.__('%1 of %2 offloaded', count, notebooks(sessions.length)));
    return this._doWithAll(sessions, session => this._api.offload(session), done, trans.__('offloaded'));
  }

  /** Shut sessions down, if the user means it; return whether it was done. */
  async shutDownAll(sessions: readonly ISession[], tell: (progress: string) => void): Promise<boolean> {
    const title = trans.__('Stop %1?', notebooks(sessions.length));
    const busy = sessions.filter(session => session.state !== 'idle' && session.state !== 'offloaded').length;
    const ended =
      busy === 0
        ? trans.__('None of them is in use now.')
        : busy === 1
          ? trans.__('1 of them is in use now; its cell ends.')
          : trans.__('%1 of them are in use now; their cells end.', busy);
    const text = trans.__(
      'Of %1. %2 Variables can be brought back for a while, where a user’s limits allow it.',
      peopleWords(sessions),
      ended
    );
    if (!(await this._handlers.ask(title, text, trans.__('Stop %1', sessions.length)))) {
      return false;
    }
    const done = (count: number) => tell(trans.__('%1 of %2 stopped', count, notebooks(sessions.length)));
    return this._doWithAll(sessions, session => this._api.shutDown(session), done, trans.__('stopped'));
  }

  /** Ask whether these are the people to be let in. */
  async mayAdd(users: readonly string[], agree: string, each: string): Promise<boolean> {
    return this._handlers.ask(`${agree} ${people(users.length)}?`, `${each} ${safeText(users.join(', '))}`, agree);
  }

  /** Replace the link of one person of a class, if the admin means it; return the new one, if there is one. */
  async replaceLink(found: IClass, user: string): Promise<IInvited[]> {
    let made: IInvited[] = [];
    const text = trans.__('The earlier link stops working, and the tokens that it gave end now. Sessions stay.');
    if (await this._handlers.ask(trans.__('Replace the link of %1?', user), text, trans.__('Replace link'))) {
      const replace = async () => {
        made = await this._api.inviteMore(found.name, [user], true);
      };
      await this.attempt(replace, trans.__('The link of %1 could not be replaced', user));
    }
    return made;
  }

  /** End a class, if the admin means it; return what has ended, or nothing. */
  async endClass(found: IClass): Promise<string> {
    let outcome = '';
    const text = trans.__(
      'Of %1. Their tokens, sessions and variables end now; what they had before stays.',
      people(found.members.length)
    );
    if (await this._handlers.ask(trans.__('End the class%1?', ofName(found)), text, trans.__('End class'))) {
      await this.attempt(async () => {
        outcome = await this._api.endClass(found.name);
      }, trans.__('The class could not be ended'));
    }
    return outcome;
  }

  private async _doWithAll(
    sessions: readonly ISession[],
    work: (session: ISession) => Promise<void>,
    done: (count: number) => void,
    what: string
  ): Promise<boolean> {
    const stillThere = async (session: ISession) => {
      if (this._model.session(session.id) !== undefined) {
        await work(session);
      }
    };
    done(0);
    const isFatal = (error: unknown) => error instanceof SignInNeededError;
    await this.attempt(
      async () => {
        const failures = await forEach(sessions, stillThere, done, isFatal);
        if (failures.length > 0) {
          this._handlers.tell(failureWords(failures, sessions.length, what));
        }
      },
      trans.__('Not all notebooks were %1', what)
    );
    return true;
  }

  private _successor(session: ISession): ISession | undefined {
    return session.lingering && session.user === this._own
      ? successorOf(session, this._model.view.status?.sessions ?? [])
      : undefined;
  }

  /** Try something; tell the user why it did not work. */
  async attempt(work: () => Promise<void>, failure: string, tell = this._handlers.tell): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (error instanceof SignInNeededError) {
        this._handlers.signIn();
        return;
      }
      tell(`${failure}: ${reasonOf(error)}`);
    }
  }
}

/** Return the name of a class as it stands after “the class”: that of a class without one is "class". */
export function ofName(found: IClass): string {
  return found.name === 'class' ? '' : ` ${safeText(found.name)}`;
}

function people(count: number): string {
  return count === 1 ? trans.__('1 person') : trans.__('%1 people', count);
}
