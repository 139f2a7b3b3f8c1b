/** A question over the page, answered with two buttons or Escape. */

import * as React from 'react';

import { english as trans } from './english';

export interface IQuestion {
  title: string;
  text: string;
  /** The label of the button that agrees. */
  agree: string;
  answer: (agreed: boolean) => void;
}

export function Question(props: { question: IQuestion }): React.ReactElement {
  const { title, text, agree, answer } = props.question;
  const dialog = React.useRef<HTMLDialogElement>(null);
  const id = React.useId();
  React.useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      className="sk-Question"
      aria-labelledby={id}
      onCancel={event => {
        event.preventDefault();
        answer(false);
      }}
    >
      <h2 id={id}>{title}</h2>
      <p>{text}</p>
      <p className="sk-Question-buttons">
        <button type="button" className="sk-Button" onClick={() => answer(false)}>
          {trans.__('Cancel')}
        </button>
        <button type="button" className="sk-Button sk-mod-warn" onClick={() => answer(true)}>
          {agree}
        </button>
      </p>
    </dialog>
  );
}
