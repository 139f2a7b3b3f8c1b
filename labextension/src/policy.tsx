/** Who is served before whom; admins can change it. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { safeText } from './describe';
import { type IAdminApi, reasonOf } from './limits';

interface IProps {
  /** As the status document has it; several devices may have several. */
  policy: string;
  /** What it does, in one sentence; null where devices have several, or an older executor does not say. */
  summary: string | null;
  /** Null for who may not change it. */
  api: IAdminApi | null;
  trans: TranslationBundle;
}

export function PolicyLine(props: IProps): React.ReactElement {
  const { policy, summary, api, trans } = props;
  return (
    <div className="sk-Policy">
      {api === null ? (
        <p className="sk-Faint">{trans.__('Policy: %1', safeText(policy))}</p>
      ) : (
        <PolicyChoice policy={policy} api={api} trans={trans} />
      )}
      {summary !== null && <p className="sk-Hint">{safeText(summary)}</p>}
      {api !== null && (
        <p className="sk-Hint">
          {trans.__('A choice here holds until the executor ends; the gateway’s setting “policy” outlives it.')}
        </p>
      )}
    </div>
  );
}

/** Which of several devices a new session gets; the gateway's configuration says so. */
export function PlacementLine(props: { rule: string; trans: TranslationBundle }): React.ReactElement {
  const { rule, trans } = props;
  const meaning = explainPlacement(rule, trans);
  return (
    <div className="sk-Policy">
      <p>{trans.__('New notebooks: %1', safeText(rule))}</p>
      {meaning !== null && <p className="sk-Hint">{meaning}</p>}
      <p className="sk-Hint">
        {trans.__('From “placement” in the gateway’s configuration, which it reads again on SIGHUP.')}
      </p>
    </div>
  );
}

function PolicyChoice(props: { policy: string; api: IAdminApi; trans: TranslationBundle }): React.ReactElement {
  const { policy, api, trans } = props;
  const [choices, setChoices] = React.useState<readonly string[]>([]);
  const [problem, setProblem] = React.useState<string | null>(null);
  const id = React.useId();
  const attempt = React.useCallback(async (work: Promise<readonly string[]>) => {
    try {
      setChoices(await work);
      setProblem(null);
    } catch (error) {
      setProblem(reasonOf(error));
    }
  }, []);
  React.useEffect(() => {
    void attempt(api.policies());
  }, [api, attempt]);
  return (
    <>
      <p className="sk-Policy-choice">
        <label htmlFor={id}>{trans.__('Policy')}</label>
        <select
          id={id}
          className="sk-Field"
          value={policy}
          onChange={event => void attempt(api.setPolicy(event.target.value))}
        >
          {!choices.includes(policy) && (
            <option value={policy} disabled>
              {safeText(policy)}
            </option>
          )}
          {choices.map(choice => (
            <option key={choice} value={choice}>
              {safeText(choice)}
            </option>
          ))}
        </select>
      </p>
      <div role="alert">{problem !== null && <p className="sk-Notice sk-mod-problem">{safeText(problem)}</p>}</div>
    </>
  );
}

/** Return what a placement rule does, in a few words; null for one that this page does not know. */
export function explainPlacement(rule: string, trans: TranslationBundle): string | null {
  switch (rule) {
    case 'least-loaded':
      return trans.__('Each starts on the device with the fewest notebooks in use.');
    case 'tiresias':
      return trans.__('Each starts on the fullest machine with room, so that others stay free.');
    case 'allox':
      return trans.__('Each starts where it is expected to end soonest.');
    case 'horus':
      return trans.__('Each starts where it is expected to slow others the least.');
    default:
      return null;
  }
}
