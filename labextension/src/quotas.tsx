/** Everybody's limits, for admins to change. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { safeText } from './describe';
import { IAdminApi, ILimits, reasonOf, typedLimit } from './limits';
import { Section } from './section';

interface IProps {
  api: IAdminApi;
  /** Who is on the device now: limits are read again when somebody new is. */
  users: readonly string[];
  trans: TranslationBundle;
}

export function QuotasSection(props: IProps): React.ReactElement {
  return (
    <Section title={props.trans.__('Quotas')} isFolded>
      <Quotas {...props} />
    </Section>
  );
}

function Quotas(props: IProps): React.ReactElement {
  const { api, users, trans } = props;
  const [limits, setLimits] = React.useState<ReadonlyMap<string, ILimits>>(new Map());
  const [problem, setProblem] = React.useState<string | null>(null);
  const who = [...users].sort().join('\n');
  const run = React.useCallback(async (work: Promise<ReadonlyMap<string, ILimits>>) => {
    try {
      setLimits(await work);
      setProblem(null);
    } catch (error) {
      setProblem(reasonOf(error));
    }
  }, []);
  React.useEffect(() => {
    void run(api.limits());
  }, [api, run, who]);
  return (
    <>
      <div role="alert">{problem !== null && <p className="sk-Notice sk-mod-problem">{safeText(problem)}</p>}</div>
      <table className="sk-Quotas">
        <thead>
          <tr>
            <th scope="col">{trans.__('User')}</th>
            <th scope="col">{trans.__('Memory')}</th>
            <th scope="col">{trans.__('Share')}</th>
            <th scope="col">{trans.__('Sessions')}</th>
          </tr>
        </thead>
        <tbody>
          {[...limits].map(([name, values]) => (
            <Row
              key={name}
              name={name}
              limits={values}
              onChange={changed => void run(api.changeLimits(name, changed))}
              trans={trans}
            />
          ))}
        </tbody>
      </table>
      <p className="sk-Hint">
        {trans.__('Empty: no limit. Changes last until the gateway reads its configuration again.')}
      </p>
    </>
  );
}

interface IRowProps {
  name: string;
  limits: ILimits;
  /** Called with what was changed, and nothing else: others may have changed the rest meanwhile. */
  onChange: (limits: Partial<ILimits>) => void;
  trans: TranslationBundle;
}

function Row(props: IRowProps): React.ReactElement {
  const { name, limits, onChange, trans } = props;
  const who = safeText(name);
  return (
    <tr>
      <th scope="row">{who}</th>
      <td>
        <Field
          label={trans.__('Memory of %1, such as 8GiB or 25%', who)}
          value={limits.memory}
          onChange={text => onChange(changed('memory', text))}
        />
      </td>
      <td>
        <Field
          label={trans.__('Share of %1, 1 is usual', who)}
          value={limits.share}
          onChange={text => onChange(changed('share', text))}
        />
      </td>
      <td>
        <Field
          label={trans.__('Number of sessions of %1', who)}
          value={limits.sessions}
          onChange={text => onChange(changed('sessions', text))}
        />
      </td>
    </tr>
  );
}

/** Return the change of one limit. */
export function changed(kind: keyof ILimits, text: string): Partial<ILimits> {
  return { [kind]: typedLimit(kind, text) };
}

interface IFieldProps {
  label: string;
  /** Null: none; undefined: not known yet. */
  value: string | number | null | undefined;
  onChange: (text: string) => void;
}

/** A value that is taken over with Enter or when the field is left, and forgotten with Escape. */
export function Field(props: IFieldProps): React.ReactElement {
  const { label, value, onChange } = props;
  const shown = String(value ?? '');
  // Null until something is typed: a field that is ready has its value in the same frame.
  const [draft, setDraft] = React.useState<string | null>(null);
  React.useEffect(() => setDraft(null), [shown]);
  const text = draft ?? shown;
  // What was refused is sent again with Enter, but not when the field is left.
  const isEdited = React.useRef(false);
  const take = () => {
    isEdited.current = false;
    if (text.trim() !== shown) {
      onChange(text.trim());
    }
  };
  return (
    <input
      className="sk-Field"
      type="text"
      aria-label={label}
      title={label}
      disabled={value === undefined}
      value={text}
      onChange={event => {
        isEdited.current = true;
        setDraft(event.target.value);
      }}
      onBlur={() => isEdited.current && take()}
      onKeyDown={event => {
        if (event.key === 'Enter') {
          take();
        } else if (event.key === 'Escape') {
          setDraft(null);
        }
      }}
    />
  );
}
