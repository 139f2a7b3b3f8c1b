/** For admins: the classes that are here, until when, and how many have joined. */

import * as React from 'react';

import { safeText } from '../describe';
import type { IStatus } from '../view';
import type { IClass, PageApi } from './api';
import { english as trans } from './english';
import { momentWords } from './moment';

interface IProps {
  api: PageApi;
  status: IStatus;
  /** How often this page has changed people or classes. */
  edits: number;
}

export function ClassNotice(props: IProps): React.ReactElement {
  const { api, status, edits } = props;
  const [found, setFound] = React.useState<IClass[]>([]);
  // People of a class come with its begin and go with its end, and who joins starts a session soon.
  const people = `${status.users.length} ${status.sessions.length}`;
  React.useEffect(() => {
    let isCurrent = true;
    const show = (answer: IClass[]) => {
      if (isCurrent) {
        setFound(answer);
      }
    };
    // A gateway of another kind has no classes; what else is wrong, the figures show.
    api.classes().then(show, () => show([]));
    return () => {
      isCurrent = false;
    };
  }, [api, people, edits]);
  return (
    <>
      {found.map(entry => (
        <p key={entry.name} className="sk-Notice sk-mod-demand">
          {found.length > 1 && `${safeText(entry.name)}: `}
          {classWords(entry)}
        </p>
      ))}
    </>
  );
}

/** Return what there is to say of a class. */
export function classWords(found: IClass): string {
  if (found.isEnding) {
    return trans.__('The class is ending.');
  }
  const until = momentWords(found.until);
  const [members, joined] = [found.members.length, found.members.length - found.waiting.length];
  return members === 1
    ? trans.__('A class of 1 ends %1; %2 joined.', until, joined)
    : trans.__('A class of %1 ends %2; %3 joined.', members, until, joined);
}
