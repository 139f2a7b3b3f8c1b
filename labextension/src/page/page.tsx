/** The gateway's page: devices and notebooks now, what happened before, how to connect, and for admins all people. */

import * as React from 'react';

import { safeText } from '../describe';
import { userColours } from '../colours';
import { DeviceStrip } from '../devicestrip';
import { momentOf } from '../format';
import { HostsSection } from '../hosts';
import type { DeviceModel } from '../model';
import { NotebookTable } from '../notebooktable';
import { notice } from '../notice';
import { NotifySwitch } from '../notifyswitch';
import { RoomRequests } from '../room';
import { AsOf, DrainNotice, WaitNotice } from '../standing';
import { TimelineSection } from '../timelinesection';
import type { ISession } from '../view';
import { PageActions } from './actions';
import { IMe, PageApi } from './api';
import { AuditSection } from './auditsection';
import { ClassNotice, useClasses } from './classnotice';
import { ClassSection } from './classsection';
import { ConnectSection } from './connect';
import { english as trans } from './english';
import { Header } from './header';
import { HistorySection, HourChart, useHistory } from './hourchart';
import { PeopleSection } from './peoplesection';
import { keepChoice } from './notifychoice';
import { IQuestion, Question } from './question';
import { selectedOf, withSessions } from './selection';
import { SelectionBar } from './selectionbar';
import { isUntouched, Tab, TABS, useTab } from './tabs';

/** More notebooks are shown on request only: these are what two screens hold. */
const MOST = 50;

interface IProps {
  api: PageApi;
  me: IMe;
  model: DeviceModel;
  onSignIn: () => void;
}

export function Page(props: IProps): React.ReactElement {
  const { api, me, model, onSignIn } = props;
  useModel(model);
  const [question, setQuestion] = React.useState<IQuestion | null>(null);
  const [failure, setFailure] = React.useState<string | null>(null);
  const [selected, setSelected] = React.useState<ReadonlySet<string>>(new Set());
  const onSelect = React.useCallback(
    (sessions: readonly ISession[], isSelected: boolean) =>
      setSelected(before => withSessions(before, sessions, isSelected)),
    []
  );
  const actions = React.useMemo(() => {
    const ask = (title: string, text: string, agree: string) =>
      new Promise<boolean>(resolve => {
        const answer = (agreed: boolean) => {
          setQuestion(null);
          resolve(agreed);
        };
        setQuestion({ title, text, agree, answer });
      });
    return new PageActions(api, model, me.user, { ask, tell: setFailure, signIn: onSignIn });
  }, [api, model, me.user, onSignIn]);
  const attempt = React.useCallback(
    (work: () => Promise<void>, told: string) => actions.attempt(work, told),
    [actions]
  );
  const signOut = () => {
    void attempt(async () => {
      await api.signOut();
      onSignIn();
    }, trans.__('You could not be signed out'));
  };
  const [edits, addEdit] = React.useReducer((count: number) => count + 1, 0);
  const histories = useHistory(api, onSignIn);
  const { status } = model.view;
  const trouble = troubleOf(model);
  const own = me.user;
  const names = { units: model.units, trans, own };
  const colours = userColours(status);
  const others = status?.sessions.filter(session => session.user !== own) ?? [];
  const chart = (device: string) => {
    const history = histories.find(one => one.device === device);
    return history && <HourChart history={history} size="small" units={model.units} colours={colours} />;
  };
  const chosen = me.admin ? selectedOf(status?.sessions ?? [], selected) : [];
  const alone = me.auth === 'single' && others.length === 0;
  const looksAfterPeople = me.admin && !alone;
  const classes = useClasses(api, looksAfterPeople, edits);
  const tabs = looksAfterPeople ? TABS : TABS.filter(each => each !== 'people' && each !== 'audit');
  const named = useTab(tabs);
  const first = useFirstTab(model);
  const tab = named ?? first;
  return (
    <>
      <Header me={me} tabs={tabs} tab={tab} onSignOut={signOut} />
      <main className={model.isLive ? 'sk-Page' : 'sk-Page sk-mod-stale'}>
        <div className="sk-Page-notices" role="status">
          {trouble !== null && <p className="sk-Notice">{trouble}</p>}
          <DrainNotice model={model} trans={trans} />
          <WaitNotice model={model} {...names} />
          {status !== null && <RoomRequests status={status} actions={actions} {...names} />}
          <ClassNotice classes={classes} />
        </div>
        <div className="sk-Page-notices" role="alert">
          {failure !== null && (
            <p className="sk-Notice sk-mod-problem">
              {safeText(failure)}{' '}
              <button type="button" className="sk-Button" onClick={() => setFailure(null)}>
                {trans.__('Dismiss')}
              </button>
            </p>
          )}
        </div>
        <AsOf model={model} trans={trans} />
        {status !== null && tab === 'now' && (
          <>
            <DeviceStrip status={status} api={me.admin && model.isLive ? api : null} chart={chart} {...names} />
            <HostsSection status={status} {...names} />
            <NotebookTable
              title={trans.__('Notebooks')}
              empty={trans.__('No notebook is running. “Connect” says how to start one.')}
              status={status}
              sessions={status.sessions}
              actions={actions}
              isAdmin={me.admin}
              currentId={null}
              colours={colours}
              {...(looksAfterPeople ? { selected, onSelect } : {})}
              most={MOST}
              {...names}
            >
              <NotifySwitch
                isOn={model.notifies}
                onChange={notifies => {
                  model.notifies = notifies;
                  keepChoice(notifies);
                }}
                trans={trans}
              />
            </NotebookTable>
          </>
        )}
        {status !== null && tab === 'people' && (
          <PeopleSection
            api={api}
            status={status}
            edits={edits}
            units={model.units}
            colours={colours}
            selected={selected}
            onSelect={onSelect}
          />
        )}
        {tab === 'people' && me.auth === 'token' && (
          <ClassSection api={api} actions={actions} classes={classes} onEdit={addEdit} />
        )}
        {tab === 'timeline' && (
          <>
            <TimelineSection api={api} colours={colours} isAway={!model.isLive} {...names} />
            <HistorySection histories={histories} units={model.units} colours={colours} />
          </>
        )}
        {tab === 'audit' && <AuditSection api={api} attempt={attempt} />}
        {tab === 'connect' && <ConnectSection me={me} api={api} attempt={attempt} />}
        {chosen.length > 0 && (tab === 'now' || tab === 'people') && (
          <SelectionBar sessions={chosen} actions={actions} onClear={() => setSelected(new Set())} />
        )}
      </main>
      <footer className="sk-Footer">sharedkernel {safeText(me.version)}</footer>
      {question !== null && <Question question={question} />}
    </>
  );
}

/** Return what opens where the address names no part: how to connect while nothing has ever run; null: not known yet. */
function useFirstTab(model: DeviceModel): Tab | null {
  const first = React.useRef<Tab | null>(null);
  const { gateway, status } = model.view;
  if (status !== null) {
    // Who reads how to connect goes on reading when the first notebook comes.
    first.current ??= isUntouched(status) ? 'connect' : 'now';
    return first.current;
  }
  return gateway.state === 'connecting' && model.problem === null ? null : 'connect';
}

/** Draw again when the model has changed, as long as somebody can see it. */
function useModel(model: DeviceModel): void {
  const [, draw] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => {
    const onChange = () => {
      if (!document.hidden) {
        draw();
      }
    };
    model.changed.connect(onChange);
    document.addEventListener('visibilitychange', onChange);
    draw();
    return () => {
      model.changed.disconnect(onChange);
      document.removeEventListener('visibilitychange', onChange);
    };
  }, [model]);
}

function troubleOf(model: DeviceModel): string | null {
  if (model.problem === 'lost' || model.problem === 'absent') {
    const { problemSince: since } = model;
    const what =
      since === null || model.problem === 'absent'
        ? trans.__('The gateway does not answer.')
        : trans.__('The gateway has not answered since %1.', momentOf(since));
    return trans.__('%1 Notebooks keep their variables; trying again.', what);
  }
  if (model.problem !== null) {
    return trans.__('This page is of another version than its gateway. Reload it.');
  }
  return notice(model, trans)?.text ?? null;
}
