/** A checkbox that can be checked in part. */

import * as React from 'react';

interface IProps {
  label: string;
  isChecked: boolean;
  /** Whether it stands for several things, of which only some are checked. */
  isPartial?: boolean;
  isDisabled?: boolean;
  onChange: (isChecked: boolean) => void;
}

export function Checkbox(props: IProps): React.ReactElement {
  const { label, isChecked, isPartial = false, isDisabled = false, onChange } = props;
  const box = React.useRef<HTMLInputElement>(null);
  React.useEffect(() => {
    if (box.current !== null) {
      box.current.indeterminate = isPartial;
    }
  }, [isPartial]);
  return (
    <input
      ref={box}
      className="sk-Checkbox"
      type="checkbox"
      aria-label={label}
      title={label}
      checked={isChecked}
      disabled={isDisabled}
      onChange={event => onChange(event.target.checked)}
    />
  );
}
