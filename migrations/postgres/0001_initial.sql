-- The log and its projections, as in `sqlite/0001_initial.sql`. Rows keep their whole value as JSON in
-- `data`, as text: Postgres' own JSON types refuse what a log may hold (U+0000), and rewrite numbers.
-- Times are milliseconds since 1970, by `clock_timestamp()`.

-- The store's clock; `at` stands for it in tests.
CREATE FUNCTION store_now(at bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(at, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

CREATE TABLE event (
    session   uuid   NOT NULL,
    seq       bigint NOT NULL CHECK (seq > 0),
    id        uuid   NOT NULL UNIQUE,
    type      text   NOT NULL,
    version   bigint NOT NULL,
    at        bigint NOT NULL,
    execution uuid,
    recovery  uuid,
    -- Of a result: the step of its call, and the call's id as JSON text.
    step      bigint,
    call      text,
    data      text   NOT NULL,
    -- SHA-256 of the data as they were written, where these are their stub.
    compacted text,
    PRIMARY KEY (session, seq),
    -- Recovery's events name no execution as their writer.
    CHECK (execution IS NULL OR recovery IS NULL)
);

-- The types and versions that events in this database have, whichever build wrote them. Who writes an
-- event sees to it in the same transaction.
CREATE TABLE kind (
    type    text   NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (type, version)
);

-- One result per call, whoever writes it.
CREATE UNIQUE INDEX event_call_result
    ON event (session, step, call)
    WHERE type = 'call.settled';

CREATE SEQUENCE incarnation;

CREATE TABLE session (
    id         uuid    NOT NULL PRIMARY KEY,
    -- Counts the commits: the one that a commit was judged by must be the one that it finds. A session
    -- that is deleted and made again under the same id goes on from another number.
    version    bigint  NOT NULL DEFAULT nextval('incarnation') << 24,
    created_at bigint  NOT NULL,
    updated_at bigint  NOT NULL,
    head       bigint  NOT NULL,
    -- Seq of the open step.
    step       bigint,
    stepping   boolean NOT NULL,
    runnable   boolean NOT NULL,
    -- Since when it is runnable and not claimed. Neither this nor any other column with an index
    -- changes while an execution appends: such an update touches no index.
    due        bigint,
    -- When its wait's timer is due.
    wake_at    bigint,
    -- Since when its outbox is not empty.
    owing      bigint,
    -- The last seq whose items are shown, where a revert hides some.
    shown      bigint,
    -- Written by a build that does not know all of its events: to be made anew from its log.
    stale      boolean NOT NULL DEFAULT false,
    data       text    NOT NULL
) WITH (fillfactor = 70);

CREATE INDEX session_newest ON session (created_at, id);
CREATE INDEX session_due ON session (due, id) WHERE due IS NOT NULL;
CREATE INDEX session_timer ON session (wake_at, id) WHERE wake_at IS NOT NULL;
CREATE INDEX session_owing ON session (owing, id) WHERE owing IS NOT NULL;
CREATE INDEX session_step ON session (id) WHERE stepping;

-- At most one per session.
CREATE TABLE claim (
    session    uuid   NOT NULL PRIMARY KEY,
    execution  uuid   NOT NULL,
    owner      uuid   NOT NULL,
    -- The authority; what `data` says is what it was at first.
    expires_at bigint NOT NULL,
    data       text   NOT NULL
) WITH (fillfactor = 70);

CREATE INDEX claim_execution ON claim (execution);
CREATE INDEX claim_expiry ON claim (expires_at, session);

CREATE TABLE input (
    id      uuid    NOT NULL PRIMARY KEY,
    session uuid    NOT NULL,
    seq     bigint  NOT NULL,
    status  text    NOT NULL,
    intent  boolean NOT NULL,
    data    text    NOT NULL,
    UNIQUE (session, seq)
);

CREATE INDEX input_pending ON input (session, seq) WHERE status = 'pending';

CREATE TABLE item (
    session    uuid    NOT NULL,
    seq        bigint  NOT NULL,
    -- Position among the items that one event began.
    n          bigint  NOT NULL,
    is_message boolean NOT NULL,
    -- Of text.
    bytes      bigint  NOT NULL,
    -- The items of the session up to this one, and their bytes.
    items_to   bigint  NOT NULL DEFAULT 0,
    bytes_to   bigint  NOT NULL DEFAULT 0,
    data       text    NOT NULL,
    PRIMARY KEY (session, seq, n)
);

CREATE TABLE step (
    session    uuid   NOT NULL,
    seq        bigint NOT NULL,
    started_at bigint NOT NULL,
    settled_at bigint,
    runner     text   NOT NULL,
    provider   text,
    usage      text,
    PRIMARY KEY (session, seq)
);

CREATE TABLE call (
    session uuid   NOT NULL,
    step    bigint NOT NULL,
    -- The call's id as JSON text: a model chose it, and it may hold anything.
    id      text   NOT NULL,
    status  text   NOT NULL,
    data    text   NOT NULL,
    PRIMARY KEY (session, step, id)
);

CREATE TABLE execution (
    session  uuid   NOT NULL,
    id       uuid   NOT NULL,
    owner    uuid   NOT NULL,
    -- 0 where its start is not in the log.
    started  bigint NOT NULL,
    ended    bigint,
    terminal text,
    PRIMARY KEY (session, id)
);

-- Bytes under their SHA-256.
CREATE TABLE blob (
    digest     text   NOT NULL PRIMARY KEY,
    -- When somebody was last given it who may be about to refer to it.
    touched_at bigint NOT NULL,
    bytes      bytea  NOT NULL
);

CREATE TABLE plugin (
    digest     text   NOT NULL PRIMARY KEY,
    kind       text   NOT NULL,
    touched_at bigint NOT NULL,
    data       text   NOT NULL,
    bytes      bytea  NOT NULL
);

CREATE TABLE alias (
    kind   text NOT NULL,
    alias  text NOT NULL,
    digest text NOT NULL,
    -- The registry's artifact that it was loaded from.
    source text,
    PRIMARY KEY (kind, alias)
);

-- How often a name was made, moved or taken away: who keeps what names lead to hears by the answers to
-- other statements that it is no longer so.
CREATE TABLE naming (
    changes bigint NOT NULL
);

INSERT INTO naming (changes) VALUES (0);

CREATE TABLE meta (
    key   text NOT NULL PRIMARY KEY,
    value text NOT NULL
);

-- The name by which this store's sessions are known elsewhere.
INSERT INTO meta (key, value) VALUES ('name', 'store:' || replace(gen_random_uuid()::text, '-', ''));

-- Each process start, as it told of itself with its last renewal.
CREATE TABLE node (
    -- The owner that its claims name.
    id          uuid    NOT NULL PRIMARY KEY,
    version     text    NOT NULL,
    address     text,
    host        text,
    pid         bigint,
    capacity    bigint  NOT NULL,
    load        bigint  NOT NULL,
    draining    boolean NOT NULL,
    -- A wish: the node reads it with its next renewal.
    drain_asked boolean NOT NULL DEFAULT false,
    started_at  bigint  NOT NULL,
    seen_at     bigint  NOT NULL,
    expires_at  bigint  NOT NULL,
    stopped_at  bigint
) WITH (fillfactor = 70);

-- Who was told last of what there is to do, so that scanners on several nodes are told different
-- things. Nothing is lost with it.
CREATE UNLOGGED TABLE scanned (
    what    text   NOT NULL,
    session uuid   NOT NULL,
    scanner uuid   NOT NULL,
    until   bigint NOT NULL,
    PRIMARY KEY (what, session)
);

-- Who was told where a name leads may still go there.
CREATE FUNCTION alias_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE plugin SET touched_at = store_now(NULL) WHERE digest = OLD.digest;
    RETURN NULL;
END $$;

CREATE TRIGGER alias_moved AFTER UPDATE OR DELETE ON alias
FOR EACH ROW EXECUTE FUNCTION alias_moved();

CREATE FUNCTION alias_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE naming SET changes = changes + 1;
    RETURN NULL;
END $$;

CREATE TRIGGER alias_changed AFTER INSERT OR UPDATE OR DELETE ON alias
FOR EACH STATEMENT EXECUTE FUNCTION alias_changed();

-- And no result before its call. A trigger of rows, as a condition is cheap where a table of what was
-- added is not: most events are no results.
CREATE FUNCTION event_call_result_after_call() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM call c
         WHERE c.session = NEW.session AND c.step = NEW.step AND c.id = NEW.call)
    THEN
        RAISE EXCEPTION 'a result before its call' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER event_call_result_after_call BEFORE INSERT ON event
FOR EACH ROW WHEN (NEW.type = 'call.settled') EXECUTE FUNCTION event_call_result_after_call();

-- session_load: what a commit is judged by, as one snapshot: the live end of a session, the events and
-- inputs that bear one of these ids, the session's events between two seqs, and the clock. Exactly one
-- row; its `o_version` is null for an unknown session.
CREATE FUNCTION session_load(
    p_session uuid, p_at bigint, p_events uuid[], p_inputs uuid[], p_first bigint, p_last bigint
) RETURNS TABLE (
    o_now bigint, o_kinds bigint, o_version bigint, o_stale boolean,
    o_id text, o_created_at bigint, o_updated_at bigint, o_head bigint, o_data text,
    o_claim text, o_expires_at bigint, o_pending text[], o_step text,
    o_events text, o_inputs text, o_held text
)
-- The arguments tell the planner that most of it is left out, so that it would plan anew each time, which
-- takes longer than the statement.
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY
    SELECT store_now(p_at), (SELECT count(*) FROM kind), s.version, s.stale,
           s.id::text, s.created_at, s.updated_at, s.head, s.data, c.data, c.expires_at,
           ARRAY(SELECT i.data FROM input i
                  WHERE i.session = s.id AND i.status = 'pending' ORDER BY i.seq),
           CASE WHEN s.step IS NOT NULL THEN (
               SELECT json_agg(json_build_array(e.session, e.seq, e.id, e.type, e.version, e.at,
                                                e.execution, e.recovery, e.data, e.compacted) ORDER BY e.seq)
                 FROM event e WHERE e.session = s.id AND e.seq >= s.step)::text END,
           CASE WHEN p_events IS NOT NULL THEN (
               SELECT json_agg(json_build_array(e.session, e.seq, e.id, e.type, e.version, e.at,
                                                e.execution, e.recovery, e.data, e.compacted))
                 FROM event e WHERE e.id = ANY (p_events))::text END,
           CASE WHEN p_inputs IS NOT NULL THEN (
               SELECT json_agg(json_build_array(i.session, i.data))
                 FROM input i WHERE i.id = ANY (p_inputs))::text END,
           CASE WHEN p_first IS NOT NULL THEN (
               SELECT json_agg(json_build_array(e.session, e.seq, e.id, e.type, e.version, e.at,
                                                e.execution, e.recovery, e.data, e.compacted) ORDER BY e.seq)
                 FROM event e WHERE e.session = s.id AND e.seq BETWEEN p_first AND p_last)::text END
      FROM (SELECT 1) AS one
      LEFT JOIN session s ON s.id = p_session
      LEFT JOIN claim c ON c.session = s.id;
END $$;

-- session_commit: makes one commit durable, if the session and its fence are still as it was judged by.
-- `o_outcome` is
--   done   stored;
--   stale  another commit came first, or the session is gone (there already, with a null `p_version`);
--   busy   another commit is at it, and `p_wait` is false.
-- It fails with MSF01 where the claim is not held (`p_expired` false), or has not expired (true), by the
-- clock. `o_names` is `naming.changes`, if it is done.
-- Nothing was stored unless it is `done`. Rows are arrays in the order of the columns, one array of
-- these per table; null for none. `p_kinds` are types and versions of the events that may be new here.
-- Each statement of it costs the server some 20 us, more than the rows that it writes: so the one that
-- changes the session's row is also what locks it and judges its version, as the one that changes the
-- claim judges the fence.
CREATE FUNCTION session_commit(
    p_session uuid, p_version bigint, p_at bigint, p_wait boolean,
    p_execution uuid, p_owner uuid, p_expired boolean,
    p_row jsonb, p_claim jsonb, p_calls jsonb, p_events jsonb, p_inputs jsonb, p_through bigint,
    p_items jsonb, p_steps jsonb, p_executions jsonb, p_kinds jsonb
) RETURNS TABLE (o_outcome text, o_now bigint, o_version bigint, o_expires_at bigint, o_names bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_held    boolean;
    v_count   bigint;
    v_first   bigint;
    v_last    bigint;
    v_items   bigint;
    v_bytes   bigint;
    v_item    record;
BEGIN
    -- What is answered is durable, whatever the server's default is.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    IF p_version IS NULL THEN
        INSERT INTO session (id, created_at, updated_at, head, step, stepping, runnable, due, wake_at,
                             owing, shown, stale, data)
        VALUES (p_session, (p_row ->> 1)::bigint, (p_row ->> 2)::bigint, (p_row ->> 3)::bigint,
                (p_row ->> 4)::bigint, p_row ->> 4 IS NOT NULL, (p_row ->> 5)::boolean,
                CASE WHEN (p_row ->> 6)::boolean THEN (p_row ->> 2)::bigint END,
                (p_row ->> 7)::bigint,
                CASE WHEN (p_row ->> 8)::boolean THEN (p_row ->> 2)::bigint END,
                (p_row ->> 9)::bigint, (p_row ->> 11)::boolean, p_row ->> 10)
        ON CONFLICT (id) DO NOTHING
        RETURNING session.version, (SELECT n.changes FROM naming n) INTO o_version, o_names;
        o_now := store_now(p_at);
        IF o_version IS NULL THEN
            o_outcome := 'stale';
            RETURN NEXT;
            RETURN;
        END IF;
    ELSE
        IF NOT p_wait THEN
            PERFORM 1 FROM session s WHERE s.id = p_session FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND AND EXISTS (
                SELECT 1 FROM session s WHERE s.id = p_session AND s.version = p_version)
            THEN
                o_outcome := 'busy';
                RETURN NEXT;
                RETURN;
            END IF;
        END IF;
        UPDATE session s SET
            version = p_version + 1, updated_at = (p_row ->> 2)::bigint,
            head = (p_row ->> 3)::bigint,
            step = (p_row ->> 4)::bigint, stepping = p_row ->> 4 IS NOT NULL,
            runnable = (p_row ->> 5)::boolean,
            due = CASE WHEN (p_row ->> 6)::boolean THEN (p_row ->> 2)::bigint END,
            wake_at = (p_row ->> 7)::bigint,
            owing = CASE WHEN (p_row ->> 8)::boolean THEN (p_row ->> 2)::bigint END,
            shown = (p_row ->> 9)::bigint, stale = (p_row ->> 11)::boolean, data = p_row ->> 10
         WHERE s.id = p_session AND s.version = p_version
        RETURNING s.version, (SELECT n.changes FROM naming n) INTO o_version, o_names;
        -- After the lock: it may have been waited for.
        o_now := store_now(p_at);
        IF o_version IS NULL THEN
            o_outcome := 'stale';
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;

    -- The claim. Null where it stays as it is; `[]` where there is none any more; else execution, owner,
    -- data and the lease of a new one, or whether an old one expires now. Nobody but a commit changes
    -- one, apart from its expiry.
    IF p_claim IS NULL THEN
        -- It may have been renewed since.
        SELECT c.expires_at,
               c.execution = p_execution AND c.owner = p_owner AND (c.expires_at <= o_now) = p_expired
          INTO o_expires_at, v_held FROM claim c WHERE c.session = p_session;
    ELSIF p_claim ->> 3 IS NOT NULL THEN
        INSERT INTO claim (session, execution, owner, expires_at, data)
        VALUES (p_session, (p_claim ->> 0)::uuid, (p_claim ->> 1)::uuid,
                least(o_now::numeric + (p_claim ->> 3)::numeric, 9223372036854775807)::bigint,
                p_claim ->> 2)
        RETURNING expires_at INTO o_expires_at;
    ELSIF jsonb_array_length(p_claim) = 0 THEN
        DELETE FROM claim c
         WHERE c.session = p_session
           AND (p_execution IS NULL OR (c.execution = p_execution AND c.owner = p_owner
                                        AND (c.expires_at <= o_now) = p_expired));
        v_held := FOUND;
    ELSE
        UPDATE claim c SET
            data = p_claim ->> 2,
            expires_at = CASE WHEN (p_claim ->> 4)::boolean THEN least(c.expires_at, o_now)
                              ELSE c.expires_at END
         WHERE c.session = p_session
           AND (p_execution IS NULL OR (c.execution = p_execution AND c.owner = p_owner
                                        AND (c.expires_at <= o_now) = p_expired))
        RETURNING c.expires_at INTO o_expires_at;
        v_held := FOUND;
    END IF;
    IF p_execution IS NOT NULL AND v_held IS NOT TRUE THEN
        -- Not an answer: the session's row is to be as it was.
        RAISE EXCEPTION 'the claim is not held' USING ERRCODE = 'MSF01';
    END IF;

    -- Calls before events: no result before its call.
    IF p_calls IS NOT NULL THEN
        INSERT INTO call (session, step, id, status, data)
        SELECT (r ->> 0)::uuid, (r ->> 1)::bigint, r ->> 2, r ->> 3, r ->> 4
          FROM jsonb_array_elements(p_calls) AS r
        ON CONFLICT (session, step, id) DO UPDATE SET status = excluded.status, data = excluded.data;
    END IF;
    IF p_kinds IS NOT NULL THEN
        INSERT INTO kind (type, version)
        SELECT r ->> 0, (r ->> 1)::bigint FROM jsonb_array_elements(p_kinds) AS r
        ON CONFLICT DO NOTHING;
    END IF;
    IF p_events IS NOT NULL THEN
        INSERT INTO event (session, seq, id, type, version, at, execution, recovery, data, compacted,
                           step, call)
        SELECT (r ->> 0)::uuid, (r ->> 1)::bigint, (r ->> 2)::uuid, r ->> 3, (r ->> 4)::bigint,
               (r ->> 5)::bigint, (r ->> 6)::uuid, (r ->> 7)::uuid, r ->> 8, r ->> 9,
               (r ->> 10)::bigint, r ->> 11
          FROM jsonb_array_elements(p_events) AS r;
    END IF;
    IF p_inputs IS NOT NULL THEN
        -- An id that another session, or an earlier admission, has is not taken over.
        INSERT INTO input (id, session, seq, status, intent, data)
        SELECT (r ->> 0)::uuid, (r ->> 1)::uuid, (r ->> 2)::bigint, r ->> 3, (r ->> 4)::boolean, r ->> 5
          FROM jsonb_array_elements(p_inputs) AS r
        ON CONFLICT (id) DO UPDATE SET
            status = excluded.status, intent = excluded.intent, data = excluded.data
         WHERE input.session = excluded.session AND input.seq = excluded.seq;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count <> jsonb_array_length(p_inputs) THEN
            RAISE EXCEPTION 'an input id is held already' USING ERRCODE = 'unique_violation';
        END IF;
    END IF;
    IF p_through IS NOT NULL THEN
        DELETE FROM item WHERE session = p_session AND seq > p_through;
    END IF;
    IF p_items IS NOT NULL THEN
        -- In their order, each with the bytes of them up to it, and written with their sums at once: to add
        -- these later is a second version of each row, by a join whose plan is dear and soon a bad one.
        v_first := (p_items -> 0 ->> 1)::bigint;
        SELECT i.seq, i.items_to, i.bytes_to INTO v_last, v_items, v_bytes FROM item i
         WHERE i.session = p_session ORDER BY i.seq DESC, i.n DESC LIMIT 1;
        INSERT INTO item (session, seq, n, is_message, bytes, data, items_to, bytes_to)
        SELECT p_session, (r ->> 1)::bigint, (r ->> 2)::bigint, (r ->> 3)::boolean, (r ->> 4)::bigint,
               r ->> 5, coalesce(v_items, 0) + n, coalesce(v_bytes, 0) + (r ->> 6)::bigint
          FROM jsonb_array_elements(p_items) WITH ORDINALITY AS a (r, n);
        IF v_last >= v_first THEN
            -- An answer may come behind the results of its calls: all from the first new item on are
            -- summed up anew, one after the other, as they are few.
            SELECT i.items_to, i.bytes_to INTO v_items, v_bytes FROM item i
             WHERE i.session = p_session AND i.seq < v_first ORDER BY i.seq DESC, i.n DESC LIMIT 1;
            v_items := coalesce(v_items, 0);
            v_bytes := coalesce(v_bytes, 0);
            FOR v_item IN
                SELECT i.seq, i.n, i.bytes FROM item i
                 WHERE i.session = p_session AND i.seq >= v_first ORDER BY i.seq, i.n
            LOOP
                v_items := v_items + 1;
                v_bytes := v_bytes + v_item.bytes;
                UPDATE item i SET items_to = v_items, bytes_to = v_bytes
                 WHERE i.session = p_session AND i.seq = v_item.seq AND i.n = v_item.n;
            END LOOP;
        END IF;
    END IF;
    IF p_steps IS NOT NULL THEN
        -- A row written again keeps the usage and the end that it had.
        INSERT INTO step (session, seq, started_at, settled_at, runner, provider, usage)
        SELECT (r ->> 0)::uuid, (r ->> 1)::bigint, (r ->> 2)::bigint, (r ->> 3)::bigint, r ->> 4,
               r ->> 5, r ->> 6
          FROM jsonb_array_elements(p_steps) AS r
        ON CONFLICT (session, seq) DO UPDATE SET
            started_at = excluded.started_at, runner = excluded.runner, provider = excluded.provider,
            settled_at = coalesce(excluded.settled_at, step.settled_at),
            usage = coalesce(excluded.usage, step.usage);
    END IF;
    IF p_executions IS NOT NULL THEN
        -- A row with `started` 0 only adds its end.
        INSERT INTO execution (session, id, owner, started, ended, terminal)
        SELECT (r ->> 0)::uuid, (r ->> 1)::uuid, (r ->> 2)::uuid, (r ->> 3)::bigint, (r ->> 4)::bigint,
               r ->> 5
          FROM jsonb_array_elements(p_executions) AS r
        ON CONFLICT (session, id) DO UPDATE SET
            owner = CASE excluded.started WHEN 0 THEN execution.owner ELSE excluded.owner END,
            started = CASE excluded.started WHEN 0 THEN execution.started ELSE excluded.started END,
            ended = excluded.ended, terminal = excluded.terminal;
    END IF;
    o_outcome := 'done';
    RETURN NEXT;
END $$;

-- session_drop: a session with all its rows; false if there was none.
CREATE FUNCTION session_drop(p_session uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    -- Whoever commits to it meanwhile waits, and then finds it gone.
    PERFORM 1 FROM session WHERE id = p_session FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM event WHERE session = p_session;
    DELETE FROM claim WHERE session = p_session;
    DELETE FROM input WHERE session = p_session;
    DELETE FROM item WHERE session = p_session;
    DELETE FROM step WHERE session = p_session;
    DELETE FROM call WHERE session = p_session;
    DELETE FROM execution WHERE session = p_session;
    DELETE FROM session WHERE id = p_session;
    RETURN true;
END $$;

-- session_scan: what there is to do, at most `p_limit` of each: claims past their expiry, runnable
-- sessions, timers that are due, outboxes. Rows that somebody works on at this moment are passed over,
-- and so are those that another scanner was told of less than `p_hold` milliseconds ago. A scanner is
-- told again of its own, which are kept from the others no longer for that.
-- Of what leads to executions, a scanner among other nodes is told its share alone: its free places
-- beside theirs, of all that there is. What it was told and did not take is the others' next.
-- `p_unknown` are types that the caller does not know: of sessions that have them it is not told. The
-- first row has the number of types that there are, for it to notice new ones, and the second how often
-- names have changed.
CREATE FUNCTION session_scan(
    p_scanner uuid, p_limit bigint, p_places bigint, p_at bigint, p_hold bigint, p_unknown text[]
) RETURNS TABLE (o_what text, o_session uuid, o_claim text, o_expires_at bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_now   bigint := store_now(p_at);
    v_part  numeric := node_part(p_scanner, p_places, v_now);
BEGIN
    RETURN QUERY SELECT 'kinds', NULL::uuid, NULL::text, count(*) FROM kind;
    RETURN QUERY SELECT 'names', NULL::uuid, NULL::text, n.changes FROM naming n;

    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT c.session, c.data, c.expires_at FROM claim c
         WHERE c.expires_at <= v_now
           AND NOT EXISTS (
            SELECT 1 FROM scanned x WHERE x.what = 'expired' AND x.session = c.session
               AND x.scanner <> p_scanner AND x.until > v_now)
           AND NOT is_foreign(c.session, p_unknown)
         ORDER BY c.expires_at, c.session
         LIMIT least(p_limit, ceil(v_part * (SELECT count(*) FROM (
            SELECT 1 FROM claim x WHERE x.expires_at <= v_now LIMIT p_limit) AS found)))::bigint
           FOR UPDATE OF c SKIP LOCKED
    ), told AS (
        INSERT INTO scanned (what, session, scanner, until)
        SELECT 'expired', f.session, p_scanner, v_now + p_hold FROM found f
        ON CONFLICT (what, session) DO UPDATE SET
            scanner = excluded.scanner,
            until = CASE scanned.scanner WHEN p_scanner THEN scanned.until ELSE excluded.until END
         WHERE scanned.scanner = p_scanner OR scanned.until <= v_now
        RETURNING session
    )
    SELECT 'expired', f.session, f.data, f.expires_at FROM found f JOIN told t ON t.session = f.session
     ORDER BY f.expires_at, f.session;

    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT s.id, s.due FROM session s
         WHERE s.due IS NOT NULL
           AND NOT EXISTS (
            SELECT 1 FROM scanned x WHERE x.what = 'due' AND x.session = s.id
               AND x.scanner <> p_scanner AND x.until > v_now)
           AND NOT is_foreign(s.id, p_unknown)
         ORDER BY s.due, s.id
         LIMIT least(p_limit, p_places, ceil(v_part * (SELECT count(*) FROM (
            SELECT 1 FROM session x WHERE x.due IS NOT NULL LIMIT p_limit) AS found)))::bigint
           FOR NO KEY UPDATE OF s SKIP LOCKED
    ), told AS (
        INSERT INTO scanned (what, session, scanner, until)
        SELECT 'due', f.id, p_scanner, v_now + p_hold FROM found f
        ON CONFLICT (what, session) DO UPDATE SET
            scanner = excluded.scanner,
            until = CASE scanned.scanner WHEN p_scanner THEN scanned.until ELSE excluded.until END
         WHERE scanned.scanner = p_scanner OR scanned.until <= v_now
        RETURNING session
    )
    SELECT 'due', f.id, NULL::text, NULL::bigint FROM found f JOIN told t ON t.session = f.id
     ORDER BY f.due, f.id;

    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT s.id, s.wake_at FROM session s
         WHERE s.wake_at IS NOT NULL AND s.wake_at <= v_now
           AND NOT EXISTS (
            SELECT 1 FROM scanned x WHERE x.what = 'timer' AND x.session = s.id
               AND x.scanner <> p_scanner AND x.until > v_now)
           AND NOT is_foreign(s.id, p_unknown)
         ORDER BY s.wake_at, s.id
         LIMIT least(p_limit, ceil(v_part * (SELECT count(*) FROM (
            SELECT 1 FROM session x WHERE x.wake_at <= v_now LIMIT p_limit) AS found)))::bigint
           FOR NO KEY UPDATE OF s SKIP LOCKED
    ), told AS (
        INSERT INTO scanned (what, session, scanner, until)
        SELECT 'timer', f.id, p_scanner, v_now + p_hold FROM found f
        ON CONFLICT (what, session) DO UPDATE SET
            scanner = excluded.scanner,
            until = CASE scanned.scanner WHEN p_scanner THEN scanned.until ELSE excluded.until END
         WHERE scanned.scanner = p_scanner OR scanned.until <= v_now
        RETURNING session
    )
    SELECT 'timer', f.id, NULL::text, NULL::bigint FROM found f JOIN told t ON t.session = f.id
     ORDER BY f.wake_at, f.id;

    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT s.id, s.owing FROM session s
         WHERE s.owing IS NOT NULL
           AND NOT EXISTS (
            SELECT 1 FROM scanned x WHERE x.what = 'owing' AND x.session = s.id
               AND x.scanner <> p_scanner AND x.until > v_now)
           AND NOT is_foreign(s.id, p_unknown)
         ORDER BY s.owing, s.id LIMIT p_limit FOR NO KEY UPDATE OF s SKIP LOCKED
    ), told AS (
        INSERT INTO scanned (what, session, scanner, until)
        SELECT 'owing', f.id, p_scanner, v_now + p_hold FROM found f
        ON CONFLICT (what, session) DO UPDATE SET
            scanner = excluded.scanner,
            until = CASE scanned.scanner WHEN p_scanner THEN scanned.until ELSE excluded.until END
         WHERE scanned.scanner = p_scanner OR scanned.until <= v_now
        RETURNING session
    )
    SELECT 'owing', f.id, NULL::text, NULL::bigint FROM found f JOIN told t ON t.session = f.id
     ORDER BY f.owing, f.id;
END $$;

-- node_part: which part of what there is to do is this node's, from 0 to 1: its free places beside those
-- of the others that live and take work. One that has no row yet counts as one among them; all of it is
-- whose who is alone.
CREATE FUNCTION node_part(p_node uuid, p_places bigint, p_now bigint) RETURNS numeric LANGUAGE sql AS $$
    SELECT CASE
        WHEN o.others = 0 THEN 1
        WHEN n.id IS NULL THEN 1.0 / (o.others + 1)
        -- At least a little, where nobody has a place: what has expired is settled all the same.
        ELSE greatest(p_places, 1)::numeric / (greatest(p_places, 1) + o.free)
        END
      FROM (SELECT count(*) AS others, coalesce(sum(greatest(x.capacity - x.load, 0)), 0) AS free
              FROM node x
             WHERE x.id <> p_node AND x.expires_at > p_now AND x.stopped_at IS NULL
               AND NOT x.draining AND NOT x.drain_asked) AS o
      LEFT JOIN node n ON n.id = p_node
$$;

-- Whether a session has an event of one of these types, each as `type/version`.
CREATE FUNCTION is_foreign(p_session uuid, p_unknown text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN p_unknown IS NOT NULL AND EXISTS (
        SELECT 1 FROM event e
         WHERE e.session = p_session AND e.type || '/' || e.version = ANY (p_unknown));
END $$;
