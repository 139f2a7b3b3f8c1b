/**
 * What the link of an invitation opens: whose it is, and once its user agrees, what connects a machine.
 *
 * It works once, and again in the same browser until the command has run.
 */

import * as React from 'react';

import { safeText } from '../describe';
import { reasonOf, RefusedError } from '../limits';
import { request } from './api';
import { Copyable, FingerprintNote, TERMINALS } from './connect';
import { english as trans } from './english';
import { momentWords } from './moment';

/** The status from which on a refusal may pass. */
const TOO_MANY_REQUESTS = 429;

/** What an invitation is for. */
interface IInvitation {
  user: string;
  /** Name of the class; that of a class without one is "class". */
  group: string;
  /** Empty where nobody knows. */
  teacher: string;
  until: Date;
  /** Whether it was used in this browser. */
  again: boolean;
}

interface IAdmission {
  user: string;
  until: Date;
  installCommand: string;
  needsCheckout: boolean;
  checksFingerprint: boolean;
}

/** Return the code in the page's address, and take it out of the address bar and the history. */
export function takeCode(): string {
  const code = window.location.hash.slice(1);
  if (code !== '') {
    window.history.replaceState(null, '', window.location.pathname);
  }
  return code;
}

export function Invitation(props: { code: string }): React.ReactElement {
  const [problem, setProblem] = React.useState('');
  const [isWaiting, setWaiting] = React.useState(false);
  const [isRefused, setRefused] = React.useState(false);
  const told = React.useRef<HTMLParagraphElement>(null);
  // The button that had the focus is gone; a screen reader goes on here.
  React.useEffect(() => (isRefused ? told.current?.focus() : undefined), [isRefused]);
  const [invitation, setInvitation] = React.useState<IInvitation | null>(null);
  const [admission, setAdmission] = React.useState<IAdmission | null>(null);
  const attempt = React.useCallback(async (work: () => Promise<void>) => {
    setWaiting(true);
    setProblem('');
    try {
      await work();
    } catch (error) {
      setRefused(error instanceof RefusedError && error.status < TOO_MANY_REQUESTS);
      setProblem(reasonOf(error));
    }
    setWaiting(false);
  }, []);
  const look = React.useCallback(
    () => attempt(async () => setInvitation(await lookAt(props.code))),
    [attempt, props.code]
  );
  React.useEffect(() => {
    if (props.code !== '') {
      void look();
    }
  }, [look, props.code]);
  if (admission !== null) {
    return <Welcome {...admission} />;
  }
  return (
    <main className="sk-SignIn sk-Invitation">
      <h1>{trans.__('Shared GPU')}</h1>
      {props.code === '' ? (
        <p>
          {trans.__('There is no invitation in this address. Open the link that you were given, or ')}
          <a href="../..">{trans.__('sign in')}</a>.
        </p>
      ) : (
        <>
          {problem === '' && invitation !== null && <Offer {...invitation} />}
          {problem !== '' && (
            <p role="alert" ref={told} tabIndex={-1}>
              {safeText(problem)}
            </p>
          )}
          {isRefused ? (
            <p>
              <a href="../..">{trans.__('Sign in with a token')}</a>
            </p>
          ) : (
            <p>
              {invitation === null ? (
                <button type="button" disabled={isWaiting} onClick={() => void look()}>
                  {trans.__('Try again')}
                </button>
              ) : (
                <button
                  type="button"
                  disabled={isWaiting}
                  onClick={() => void attempt(async () => setAdmission(await admit(props.code)))}
                >
                  {invitation.again ? trans.__('Show the command again') : trans.__('Yes, join the class')}
                </button>
              )}
            </p>
          )}
        </>
      )}
    </main>
  );
}

/** What somebody should know before they use an invitation. */
function Offer(props: IInvitation): React.ReactElement {
  const { user, group, teacher, until, again } = props;
  const what = group === 'class' ? trans.__('a class') : trans.__('the class %1', safeText(group));
  const whose = teacher === '' ? what : trans.__('%1 of %2', what, safeText(teacher));
  return (
    <>
      <p>
        {trans.__('%1, you are invited to %2 on a shared GPU. It ends %3.', safeText(user), whose, momentWords(until))}
      </p>
      <p>
        <strong>{trans.__('Are you at the computer with JupyterLab?')}</strong>{' '}
        {again
          ? trans.__(
              'You joined in this browser. The command can be shown until it has run; a new token replaces the first.'
            )
          : trans.__(
              'If not, open this link there: it works in one browser. You get a command to run on that computer.'
            )}
      </p>
    </>
  );
}

function Welcome(props: IAdmission): React.ReactElement {
  const { user, until, installCommand, needsCheckout, checksFingerprint } = props;
  const heading = React.useRef<HTMLHeadingElement>(null);
  // The button that had the focus is gone; a screen reader goes on here.
  React.useEffect(() => heading.current?.focus(), []);
  return (
    <main className="sk-SignIn sk-Invitation">
      <h1 ref={heading} tabIndex={-1}>
        {trans.__('Welcome, %1', safeText(user))}
      </h1>
      <p>{trans.__('The class ends %1; your sessions and their variables end with it.', momentWords(until))}</p>
      <ol>
        <li>
          <p>
            {needsCheckout
              ? trans.__('Run this on your own machine, in a checkout of sharedkernel.')
              : trans.__('Run this on your own machine, in the environment that has JupyterLab.')}{' '}
            {TERMINALS}{' '}
            {trans.__('The two lines hold your token, so keep them to yourself. Open the link again to see them anew:')}
          </p>
          <Copyable label={trans.__('Copy the command')} text={installCommand} />
          {checksFingerprint && <FingerprintNote />}
        </li>
        <li>
          <p>{trans.__('Start JupyterLab and pick “Shared GPU”.')}</p>
        </li>
      </ol>
      <p>
        <a href="../..">{trans.__('See who uses the GPU')}</a>
      </p>
    </main>
  );
}

async function lookAt(code: string): Promise<IInvitation> {
  const answer = (await request('POST', 'invitation/look', { code })) as Record<string, unknown>;
  return {
    user: String(answer.user),
    group: String(answer.class),
    teacher: String(answer.teacher),
    until: new Date(String(answer.until)),
    again: answer.again === true
  };
}

async function admit(code: string): Promise<IAdmission> {
  const answer = (await request('POST', 'invitation/accept', { code })) as Record<string, unknown>;
  return {
    user: String(answer.user),
    until: new Date(String(answer.until)),
    installCommand: String(answer.install_command),
    needsCheckout: answer.needs_checkout === true,
    checksFingerprint: answer.checks_fingerprint === true
  };
}
