/** A part of a page or panel with its heading. */

import * as React from 'react';

interface IProps {
  title: React.ReactNode;
  /** Whether its content is there on request only. */
  isFolded?: boolean;
  className?: string;
  children: React.ReactNode;
}

export function Section(props: IProps): React.ReactElement {
  const { title, isFolded = false, className = '', children } = props;
  const [isOpen, setOpen] = React.useState(false);
  const id = React.useId();
  const heading = (
    <h2 id={id} className="sk-Section-title">
      {title}
    </h2>
  );
  return (
    <section className={`sk-Section ${className}`.trim()} aria-labelledby={id}>
      {isFolded ? (
        <details open={isOpen} onToggle={event => setOpen(event.currentTarget.open)}>
          <summary>{heading}</summary>
          {isOpen && <div className="sk-Section-folded">{children}</div>}
        </details>
      ) : (
        <>
          {heading}
          {children}
        </>
      )}
    </section>
  );
}
