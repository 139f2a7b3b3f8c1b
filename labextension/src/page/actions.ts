/** What a user can do with a session, from the gateway's page. */

import { sessionName } from '../describe';
import type { DeviceModel } from '../model';
import { ISessionActions, shutDownQuestion, successorOf } from '../sessionactions';
import type { ISession } from '../view';
import { PageApi, SignInNeededError } from './api';
import { english as trans } from './english';

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

  private _successor(session: ISession): ISession | undefined {
    return session.lingering && session.user === this._own
      ? successorOf(session, this._model.view.status?.sessions ?? [])
      : undefined;
  }

  /** Try something; tell the user why it did not work. */
  async attempt(work: () => Promise<void>, failure: string): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (error instanceof SignInNeededError) {
        this._handlers.signIn();
        return;
      }
      this._handlers.tell(`${failure}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}
