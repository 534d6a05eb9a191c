--
-- PostgreSQL database dump
--

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: alias_changed(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.alias_changed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE naming SET changes = changes + 1;
    RETURN NULL;
END $$;

--
-- Name: alias_moved(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.alias_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE plugin SET touched_at = store_now(NULL) WHERE digest = OLD.digest;
    RETURN NULL;
END $$;

--
-- Name: event_call_result_after_call(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.event_call_result_after_call() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM call c
         WHERE c.session = NEW.session AND c.step = NEW.step AND c.id = NEW.call)
    THEN
        RAISE EXCEPTION 'a result before its call' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

--
-- Name: is_foreign(uuid, text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.is_foreign(p_session uuid, p_unknown text[]) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    RETURN p_unknown IS NOT NULL AND EXISTS (
        SELECT 1 FROM event e
         WHERE e.session = p_session AND e.type || '/' || e.version = ANY (p_unknown));
END $$;

--
-- Name: node_part(uuid, bigint, bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.node_part(p_node uuid, p_places bigint, p_now bigint) RETURNS numeric
    LANGUAGE sql
    AS $$
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

--
-- Name: session_commit(uuid, bigint, bigint, boolean, uuid, uuid, boolean, jsonb, jsonb, jsonb, jsonb, jsonb, bigint, jsonb, jsonb, jsonb, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.session_commit(p_session uuid, p_version bigint, p_at bigint, p_wait boolean, p_execution uuid, p_owner uuid, p_expired boolean, p_row jsonb, p_claim jsonb, p_calls jsonb, p_events jsonb, p_inputs jsonb, p_through bigint, p_items jsonb, p_steps jsonb, p_executions jsonb, p_kinds jsonb) RETURNS TABLE(o_outcome text, o_now bigint, o_version bigint, o_expires_at bigint, o_names bigint)
    LANGUAGE plpgsql
    AS $$
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

--
-- Name: session_drop(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.session_drop(p_session uuid) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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

--
-- Name: session_load(uuid, bigint, uuid[], uuid[], bigint, bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.session_load(p_session uuid, p_at bigint, p_events uuid[], p_inputs uuid[], p_first bigint, p_last bigint) RETURNS TABLE(o_now bigint, o_kinds bigint, o_version bigint, o_stale boolean, o_id text, o_created_at bigint, o_updated_at bigint, o_head bigint, o_data text, o_claim text, o_expires_at bigint, o_pending text[], o_step text, o_events text, o_inputs text, o_held text)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
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

--
-- Name: session_scan(uuid, bigint, bigint, bigint, bigint, text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.session_scan(p_scanner uuid, p_limit bigint, p_places bigint, p_at bigint, p_hold bigint, p_unknown text[]) RETURNS TABLE(o_what text, o_session uuid, o_claim text, o_expires_at bigint)
    LANGUAGE plpgsql
    AS $$
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

--
-- Name: store_now(bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.store_now(at bigint) RETURNS bigint
    LANGUAGE sql
    AS $$
    SELECT coalesce(at, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: _sqlx_migrations; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public._sqlx_migrations (
    version bigint NOT NULL,
    description text NOT NULL,
    installed_on timestamp with time zone DEFAULT now() NOT NULL,
    success boolean NOT NULL,
    checksum bytea NOT NULL,
    execution_time bigint NOT NULL
);

--
-- Name: alias; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.alias (
    kind text NOT NULL,
    alias text NOT NULL,
    digest text NOT NULL,
    source text
);

--
-- Name: blob; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.blob (
    digest text NOT NULL,
    touched_at bigint NOT NULL,
    bytes bytea NOT NULL
);

--
-- Name: call; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.call (
    session uuid NOT NULL,
    step bigint NOT NULL,
    id text NOT NULL,
    status text NOT NULL,
    data text NOT NULL
);

--
-- Name: claim; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.claim (
    session uuid NOT NULL,
    execution uuid NOT NULL,
    owner uuid NOT NULL,
    expires_at bigint NOT NULL,
    data text NOT NULL
)
WITH (fillfactor='70');

--
-- Name: event; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.event (
    session uuid NOT NULL,
    seq bigint NOT NULL,
    id uuid NOT NULL,
    type text NOT NULL,
    version bigint NOT NULL,
    at bigint NOT NULL,
    execution uuid,
    recovery uuid,
    step bigint,
    call text,
    data text NOT NULL,
    compacted text,
    CONSTRAINT event_check CHECK (((execution IS NULL) OR (recovery IS NULL))),
    CONSTRAINT event_seq_check CHECK ((seq > 0))
);

--
-- Name: execution; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.execution (
    session uuid NOT NULL,
    id uuid NOT NULL,
    owner uuid NOT NULL,
    started bigint NOT NULL,
    ended bigint,
    terminal text
);

--
-- Name: incarnation; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.incarnation
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

--
-- Name: input; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.input (
    id uuid NOT NULL,
    session uuid NOT NULL,
    seq bigint NOT NULL,
    status text NOT NULL,
    intent boolean NOT NULL,
    data text NOT NULL
);

--
-- Name: item; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.item (
    session uuid NOT NULL,
    seq bigint NOT NULL,
    n bigint NOT NULL,
    is_message boolean NOT NULL,
    bytes bigint NOT NULL,
    items_to bigint DEFAULT 0 NOT NULL,
    bytes_to bigint DEFAULT 0 NOT NULL,
    data text NOT NULL
);

--
-- Name: kind; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.kind (
    type text NOT NULL,
    version bigint NOT NULL
);

--
-- Name: meta; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.meta (
    key text NOT NULL,
    value text NOT NULL
);

--
-- Name: naming; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.naming (
    changes bigint NOT NULL
);

--
-- Name: node; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.node (
    id uuid NOT NULL,
    version text NOT NULL,
    address text,
    host text,
    pid bigint,
    capacity bigint NOT NULL,
    load bigint NOT NULL,
    draining boolean NOT NULL,
    drain_asked boolean DEFAULT false NOT NULL,
    started_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    stopped_at bigint
)
WITH (fillfactor='70');

--
-- Name: plugin; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.plugin (
    digest text NOT NULL,
    kind text NOT NULL,
    touched_at bigint NOT NULL,
    data text NOT NULL,
    bytes bytea NOT NULL
);

--
-- Name: scanned; Type: TABLE; Schema: public; Owner: -
--

CREATE UNLOGGED TABLE public.scanned (
    what text NOT NULL,
    session uuid NOT NULL,
    scanner uuid NOT NULL,
    until bigint NOT NULL
);

--
-- Name: session; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.session (
    id uuid NOT NULL,
    version bigint DEFAULT (nextval('public.incarnation'::regclass) << 24) NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    head bigint NOT NULL,
    step bigint,
    stepping boolean NOT NULL,
    runnable boolean NOT NULL,
    due bigint,
    wake_at bigint,
    owing bigint,
    shown bigint,
    stale boolean DEFAULT false NOT NULL,
    data text NOT NULL
)
WITH (fillfactor='70');

--
-- Name: step; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.step (
    session uuid NOT NULL,
    seq bigint NOT NULL,
    started_at bigint NOT NULL,
    settled_at bigint,
    runner text NOT NULL,
    provider text,
    usage text
);

--
-- Data for Name: _sqlx_migrations; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public._sqlx_migrations VALUES (1, 'initial', '2026-12-01 07:13:38.993921+00', true, '\x07155a14e6ac10736e93a0fe936af72fe36d67e0085530182b0e6025fc61b0da1ffdd8473254a203faa7d4664a6ae064', 0);

--
-- Data for Name: alias; Type: TABLE DATA; Schema: public; Owner: -
--

--
-- Data for Name: blob; Type: TABLE DATA; Schema: public; Owner: -
--

--
-- Data for Name: call; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.call VALUES ('00000000-0000-0000-0000-000000000001', 6, '"a"', 'settled', '{"session":"00000000-0000-0000-0000-000000000001","step":6,"id":"a","tool":"tool","effect":null,"status":"settled","own":false,"hosted":false,"key":null,"runs":0,"result":7}');
INSERT INTO public.call VALUES ('00000000-0000-0000-0000-000000000001', 8, '"b"', 'ready', '{"session":"00000000-0000-0000-0000-000000000001","step":8,"id":"b","tool":"tool","effect":null,"status":"ready","own":false,"hosted":false,"key":null,"runs":0,"result":null}');

--
-- Data for Name: claim; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.claim VALUES ('00000000-0000-0000-0000-000000000001', '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', '00000000-0000-0000-0000-000000000009', 1700000030000, '{"session":"00000000-0000-0000-0000-000000000001","execution":"1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5","owner":"00000000-0000-0000-0000-000000000009","expires_at":1700000030000,"phase":"unknown","step":8,"interrupt":false,"ended":false,"resumed":false,"superseded":false}');

--
-- Data for Name: event; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000001', 1, '01a23073-b4f1-77c6-b140-d54fb66be865', 'session.created', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000001', 2, '01a23073-b4f4-7278-8f60-e6a1ef641a6f', 'input.admitted', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"input":"9574a2dc-54b0-5082-9949-30bf682de899","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000001', 3, '01a23073-b4f7-7353-a231-b5c6ed45959d', 'execution.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, NULL, NULL, '{"execution":"1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000001', 4, '01a23073-b4f1-77c6-b140-d54c3e93fecc', 'turn.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, NULL, NULL, '{"steps":10}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000001', 5, '01a23073-b4f1-77c6-b140-d54d7a484be4', 'input.promoted', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, NULL, NULL, '{"input":"9574a2dc-54b0-5082-9949-30bf682de899"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000001', 6, '01a23073-b4f1-77c6-b140-d54e3b56a4d7', 'step.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, NULL, NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"toolboxes":[],"action":{"call_tools":[{"id":"a","tool":"tool","arguments":"{}"}]},"decide_us":0}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000001', 7, '01a23073-b4ff-73cb-b7e1-c168c4872e37', 'call.settled', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, 6, '"a"', '{"step":6,"result":{"call":"a","tool":"tool","outcome":"succeeded","output":[{"text":"done"}]},"timing":{"total_ms":0}}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000001', 8, '01a23073-b4ff-73cb-b7e1-c169977051dd', 'step.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, NULL, NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"provider":{"alias":"provider","name":"provider","digest":"d-provider","model":"model"},"toolboxes":[],"action":{"call_model":{"transcript":[{"items":{"after":0,"through":9223372036854775807}}],"tools":"all"}},"decide_us":0}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000001', 9, '01a23073-b501-7114-8b37-b80bf1fcfebd', 'step.output', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, NULL, NULL, '{"step":8,"pieces":[{"call":{"id":"b","tool":"tool"}},{"arguments":{"id":"b","text":"{}"}},{"call_ready":{"id":"b"}}]}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000002', 1, '01a23073-b502-770b-80bf-4c5e12641ad2', 'session.created', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000002', 2, '01a23073-b503-74e8-abff-a0d622c7d680', 'input.admitted', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"input":"8a843c33-cc7a-5192-8328-403ada52560a","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000002', 3, '01a23073-b504-74d3-b20e-ef6b9960f7ac', 'execution.started', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, NULL, NULL, '{"execution":"a4923d61-9520-533b-9582-f4db05fd8f6b","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000002', 4, '01a23073-b502-770b-80bf-4c5bcae2e1e0', 'turn.started', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, NULL, NULL, '{"steps":10}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000002', 5, '01a23073-b502-770b-80bf-4c5cb6848ac0', 'input.promoted', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, NULL, NULL, '{"input":"8a843c33-cc7a-5192-8328-403ada52560a"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000002', 6, '01a23073-b502-770b-80bf-4c5d7ab9c44d', 'step.started', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, NULL, NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"toolboxes":[],"action":{"wait":{"until":[{"approval":{"key":"k","question":"may I?","details":null}},{"time":1700000060000}]}},"decide_us":0}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000002', 7, 'e3a65216-7a59-5a6b-ab97-37b522b9c785', 'execution.suspended', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, NULL, NULL, '{"execution":"a4923d61-9520-533b-9582-f4db05fd8f6b"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000002', 8, '01a23073-b509-70af-b3b0-49ef5e48c5ff', 'input.admitted', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"input":"e7640800-0854-51b1-8159-e8c357ea5517","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"later"}]}}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000003', 1, '01a23073-b50a-7755-bf64-777fa7330b81', 'session.created', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000003', 2, '01a23073-b50b-7176-b301-13928e24aeef', 'input.admitted', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"input":"f8133144-f5a6-57a7-b850-1b46a68d9b7b","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000003', 3, '01a23073-b50c-713c-8e55-a25f348c976b', 'execution.started', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, NULL, NULL, '{"execution":"e56900a9-df8d-55da-a70d-1d2998e9b47e","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000003', 4, '01a23073-b50a-7755-bf64-777ca28cb3d9', 'turn.started', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, NULL, NULL, '{"steps":10}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000003', 5, '01a23073-b50a-7755-bf64-777dfd779326', 'input.promoted', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, NULL, NULL, '{"input":"f8133144-f5a6-57a7-b850-1b46a68d9b7b"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000003', 6, '01a23073-b50a-7755-bf64-777e7ee76c66', 'step.started', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, NULL, NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"provider":{"alias":"provider","name":"provider","digest":"d-provider","model":"model"},"toolboxes":[],"action":{"call_model":{"transcript":[{"items":{"after":0,"through":9223372036854775807}}],"tools":"all"}},"decide_us":0}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000004', 1, '01a23073-b50e-768b-94c6-444f662b1e83', 'session.created', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000004', 2, '01a23073-b50f-7052-8d57-6da7ecc82f44', 'input.admitted', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"input":"f8fbbd1d-03f9-560d-a0cf-38432adc95fb","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000004', 3, '01a23073-b510-719f-afeb-dc0e11b90381', 'execution.started', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, NULL, NULL, '{"execution":"a79c16e7-c248-528f-9c57-13b797b1c38e","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000004', 4, '01a23073-b50e-768b-94c6-444cc35aacf2', 'turn.started', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, NULL, NULL, '{"steps":10}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000004', 5, '01a23073-b50e-768b-94c6-444d3690a27b', 'input.promoted', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, NULL, NULL, '{"input":"f8fbbd1d-03f9-560d-a0cf-38432adc95fb"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000004', 6, '01a23073-b50e-768b-94c6-444eb950e404', 'step.started', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, NULL, NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"toolboxes":[],"action":{"spawn":[{"key":"c","agent":null,"prompt":[{"text":"do"}]}]},"decide_us":0}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000004', 7, '01a23073-b512-725e-92f0-03da8a71abb1', 'turn.ended', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, NULL, NULL, '{"outcome":{"outcome":"done"}}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000004', 8, 'e0a450bc-4283-5aa7-b582-c6af366832e6', 'execution.succeeded', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, NULL, NULL, '{"execution":"a79c16e7-c248-528f-9c57-13b797b1c38e"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000005', 1, '01a23073-b513-7593-863d-80a5ed581dc5', 'session.created', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000005', 2, '01a23073-b514-77ee-a3dc-9e0553b3f68c', 'input.admitted', 1, 1700000000000, NULL, NULL, NULL, NULL, '{"input":"164ef5fd-45b3-5636-8d15-ac1e2f3f7d91","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"later"}]}}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000003', 7, 'b71a528d-8ae4-52bc-aca3-cd1dcc1bdb7f', 'execution.interrupted', 1, 1700000000000, NULL, '075e0ee4-8425-5085-bc19-a09d93542217', NULL, NULL, '{"execution":"e56900a9-df8d-55da-a70d-1d2998e9b47e","reason":"crash"}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000003', 8, '1f2a8120-2259-5331-82d9-5df7e0f6890d', 'recovery.recorded', 1, 1700000000000, NULL, '075e0ee4-8425-5085-bc19-a09d93542217', NULL, NULL, '{"recovery":"075e0ee4-8425-5085-bc19-a09d93542217","execution":"e56900a9-df8d-55da-a70d-1d2998e9b47e","phase":"unknown","attempts":0}', NULL);
INSERT INTO public.event VALUES ('00000000-0000-0000-0000-000000000003', 9, '60cc5f28-a98c-5cc2-a512-e831441a0b8a', 'session.quarantined', 1, 1700000000000, NULL, '075e0ee4-8425-5085-bc19-a09d93542217', NULL, NULL, '{"reason":"its recovery does not fit its log"}', NULL);

--
-- Data for Name: execution; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.execution VALUES ('00000000-0000-0000-0000-000000000001', '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', '00000000-0000-0000-0000-000000000009', 3, NULL, NULL);
INSERT INTO public.execution VALUES ('00000000-0000-0000-0000-000000000002', 'a4923d61-9520-533b-9582-f4db05fd8f6b', '00000000-0000-0000-0000-000000000009', 3, 7, 'execution.suspended');
INSERT INTO public.execution VALUES ('00000000-0000-0000-0000-000000000004', 'a79c16e7-c248-528f-9c57-13b797b1c38e', '00000000-0000-0000-0000-000000000009', 3, 8, 'execution.succeeded');
INSERT INTO public.execution VALUES ('00000000-0000-0000-0000-000000000003', 'e56900a9-df8d-55da-a70d-1d2998e9b47e', '00000000-0000-0000-0000-000000000009', 3, 7, 'execution.interrupted');

--
-- Data for Name: input; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.input VALUES ('9574a2dc-54b0-5082-9949-30bf682de899', '00000000-0000-0000-0000-000000000001', 2, 'promoted', false, '{"id":"9574a2dc-54b0-5082-9949-30bf682de899","session":"00000000-0000-0000-0000-000000000001","seq":2,"at":1700000000000,"delivery":"queue","status":"promoted","intent":false,"content":{"kind":"prompt","parts":[{"text":"hello"}]}}');
INSERT INTO public.input VALUES ('8a843c33-cc7a-5192-8328-403ada52560a', '00000000-0000-0000-0000-000000000002', 2, 'promoted', false, '{"id":"8a843c33-cc7a-5192-8328-403ada52560a","session":"00000000-0000-0000-0000-000000000002","seq":2,"at":1700000000000,"delivery":"queue","status":"promoted","intent":false,"content":{"kind":"prompt","parts":[{"text":"hello"}]}}');
INSERT INTO public.input VALUES ('e7640800-0854-51b1-8159-e8c357ea5517', '00000000-0000-0000-0000-000000000002', 8, 'pending', true, '{"id":"e7640800-0854-51b1-8159-e8c357ea5517","session":"00000000-0000-0000-0000-000000000002","seq":8,"at":1700000000000,"delivery":"queue","status":"pending","intent":true,"content":{"kind":"prompt","parts":[{"text":"later"}]}}');
INSERT INTO public.input VALUES ('f8133144-f5a6-57a7-b850-1b46a68d9b7b', '00000000-0000-0000-0000-000000000003', 2, 'promoted', false, '{"id":"f8133144-f5a6-57a7-b850-1b46a68d9b7b","session":"00000000-0000-0000-0000-000000000003","seq":2,"at":1700000000000,"delivery":"queue","status":"promoted","intent":false,"content":{"kind":"prompt","parts":[{"text":"hello"}]}}');
INSERT INTO public.input VALUES ('f8fbbd1d-03f9-560d-a0cf-38432adc95fb', '00000000-0000-0000-0000-000000000004', 2, 'promoted', false, '{"id":"f8fbbd1d-03f9-560d-a0cf-38432adc95fb","session":"00000000-0000-0000-0000-000000000004","seq":2,"at":1700000000000,"delivery":"queue","status":"promoted","intent":false,"content":{"kind":"prompt","parts":[{"text":"hello"}]}}');
INSERT INTO public.input VALUES ('164ef5fd-45b3-5636-8d15-ac1e2f3f7d91', '00000000-0000-0000-0000-000000000005', 2, 'pending', true, '{"id":"164ef5fd-45b3-5636-8d15-ac1e2f3f7d91","session":"00000000-0000-0000-0000-000000000005","seq":2,"at":1700000000000,"delivery":"queue","status":"pending","intent":true,"content":{"kind":"prompt","parts":[{"text":"later"}]}}');

--
-- Data for Name: item; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.item VALUES ('00000000-0000-0000-0000-000000000001', 5, 0, true, 5, 1, 5, '{"seq":5,"at":1700000000000,"body":{"kind":"user","data":[{"text":"hello"}]}}');
INSERT INTO public.item VALUES ('00000000-0000-0000-0000-000000000001', 6, 0, true, 6, 2, 11, '{"seq":6,"at":1700000000000,"body":{"kind":"assistant","data":{"author":{"runner":"test"},"content":[{"tool_call":{"id":"a","tool":"tool","arguments":"{}"}}],"ending":{"finished":"tool_calls"}}}}');
INSERT INTO public.item VALUES ('00000000-0000-0000-0000-000000000001', 7, 0, true, 4, 3, 15, '{"seq":7,"at":1700000000000,"body":{"kind":"tool_result","data":{"call":"a","tool":"tool","outcome":"succeeded","output":[{"text":"done"}]}}}');
INSERT INTO public.item VALUES ('00000000-0000-0000-0000-000000000002', 5, 0, true, 5, 1, 5, '{"seq":5,"at":1700000000000,"body":{"kind":"user","data":[{"text":"hello"}]}}');
INSERT INTO public.item VALUES ('00000000-0000-0000-0000-000000000003', 5, 0, true, 5, 1, 5, '{"seq":5,"at":1700000000000,"body":{"kind":"user","data":[{"text":"hello"}]}}');
INSERT INTO public.item VALUES ('00000000-0000-0000-0000-000000000004', 5, 0, true, 5, 1, 5, '{"seq":5,"at":1700000000000,"body":{"kind":"user","data":[{"text":"hello"}]}}');

--
-- Data for Name: kind; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.kind VALUES ('session.created', 1);
INSERT INTO public.kind VALUES ('input.admitted', 1);
INSERT INTO public.kind VALUES ('execution.started', 1);
INSERT INTO public.kind VALUES ('input.promoted', 1);
INSERT INTO public.kind VALUES ('step.started', 1);
INSERT INTO public.kind VALUES ('turn.started', 1);
INSERT INTO public.kind VALUES ('call.settled', 1);
INSERT INTO public.kind VALUES ('step.output', 1);
INSERT INTO public.kind VALUES ('execution.suspended', 1);
INSERT INTO public.kind VALUES ('execution.succeeded', 1);
INSERT INTO public.kind VALUES ('turn.ended', 1);
INSERT INTO public.kind VALUES ('execution.interrupted', 1);
INSERT INTO public.kind VALUES ('recovery.recorded', 1);
INSERT INTO public.kind VALUES ('session.quarantined', 1);

--
-- Data for Name: meta; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.meta VALUES ('name', 'store:6a7ca67004714c10ae43b442cd36001c');

--
-- Data for Name: naming; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.naming VALUES (0);

--
-- Data for Name: node; Type: TABLE DATA; Schema: public; Owner: -
--

--
-- Data for Name: plugin; Type: TABLE DATA; Schema: public; Owner: -
--

--
-- Data for Name: scanned; Type: TABLE DATA; Schema: public; Owner: -
--

--
-- Data for Name: session; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.session VALUES ('00000000-0000-0000-0000-000000000003', 50331653, 1700000000000, 1700000000000, 9, 6, true, false, NULL, NULL, NULL, NULL, false, '{"id":"00000000-0000-0000-0000-000000000003","agent":"test","model":null,"title":null,"head":9,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":{"began":4,"steps_left":9,"steps":10,"settled_steps":0},"last_turn":null,"step":6,"trigger":"turn_started","seen":5,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":"its recovery does not fit its log","cancelled":false,"foreign":null}');
INSERT INTO public.session VALUES ('00000000-0000-0000-0000-000000000001', 16777221, 1700000000000, 1700000000000, 9, 8, true, true, NULL, NULL, NULL, NULL, false, '{"id":"00000000-0000-0000-0000-000000000001","agent":"test","model":null,"title":null,"head":9,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"execution":"1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5","turn":{"began":4,"steps_left":8,"steps":10,"settled_steps":1},"last_turn":null,"step":8,"trigger":"tools_finished","seen":7,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":null,"cancelled":false,"foreign":null}');
INSERT INTO public.session VALUES ('00000000-0000-0000-0000-000000000002', 33554437, 1700000000000, 1700000000000, 8, NULL, false, false, NULL, 1700000060000, NULL, NULL, false, '{"id":"00000000-0000-0000-0000-000000000002","agent":"test","model":null,"title":null,"head":8,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":{"began":4,"steps_left":9,"steps":10,"settled_steps":1},"wait":{"step":6,"until":[{"approval":{"key":"k","question":"may I?","details":null}},{"time":1700000060000}],"wake_at":1700000060000},"arrived":{"approvals":{"k":{"step":6,"at":1700000000000,"request":{"key":"k","question":"may I?","details":null}}}},"last_turn":null,"step":null,"trigger":"turn_started","seen":5,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":null,"cancelled":false,"foreign":null}');
INSERT INTO public.session VALUES ('00000000-0000-0000-0000-000000000004', 67108868, 1700000000000, 1700000000000, 8, NULL, false, false, NULL, NULL, 1700000000000, NULL, false, '{"id":"00000000-0000-0000-0000-000000000004","agent":"test","model":null,"title":null,"head":8,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":null,"children":[{"key":"c","session":"bd758bca-9e73-5685-9d92-217ca0d32407"}],"outbox":[{"kind":"spawn","child":"bd758bca-9e73-5685-9d92-217ca0d32407","agent":"test","parent":{"session":"00000000-0000-0000-0000-000000000004","key":"c","depth":1},"prompt":[{"text":"do"}]}],"last_turn":{"outcome":"done"},"step":null,"trigger":"spawned","seen":5,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":null,"cancelled":false,"foreign":null}');
INSERT INTO public.session VALUES ('00000000-0000-0000-0000-000000000005', 83886081, 1700000000000, 1700000000000, 2, NULL, false, true, 1700000000000, NULL, NULL, NULL, false, '{"id":"00000000-0000-0000-0000-000000000005","agent":"test","model":null,"title":null,"head":2,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":null,"last_turn":null,"step":null,"trigger":"turn_started","seen":1,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":null,"cancelled":false,"foreign":null}');

--
-- Data for Name: step; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.step VALUES ('00000000-0000-0000-0000-000000000001', 6, 1700000000000, 1700000000000, '{"alias":"test","name":"test","digest":"d-runner"}', NULL, NULL);
INSERT INTO public.step VALUES ('00000000-0000-0000-0000-000000000001', 8, 1700000000000, NULL, '{"alias":"test","name":"test","digest":"d-runner"}', 'd-provider', NULL);
INSERT INTO public.step VALUES ('00000000-0000-0000-0000-000000000002', 6, 1700000000000, 1700000000000, '{"alias":"test","name":"test","digest":"d-runner"}', NULL, NULL);
INSERT INTO public.step VALUES ('00000000-0000-0000-0000-000000000003', 6, 1700000000000, NULL, '{"alias":"test","name":"test","digest":"d-runner"}', 'd-provider', NULL);
INSERT INTO public.step VALUES ('00000000-0000-0000-0000-000000000004', 6, 1700000000000, 1700000000000, '{"alias":"test","name":"test","digest":"d-runner"}', NULL, NULL);

--
-- Name: incarnation; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.incarnation', 5, true);

--
-- Name: _sqlx_migrations _sqlx_migrations_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public._sqlx_migrations
    ADD CONSTRAINT _sqlx_migrations_pkey PRIMARY KEY (version);

--
-- Name: alias alias_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.alias
    ADD CONSTRAINT alias_pkey PRIMARY KEY (kind, alias);

--
-- Name: blob blob_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.blob
    ADD CONSTRAINT blob_pkey PRIMARY KEY (digest);

--
-- Name: call call_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.call
    ADD CONSTRAINT call_pkey PRIMARY KEY (session, step, id);

--
-- Name: claim claim_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.claim
    ADD CONSTRAINT claim_pkey PRIMARY KEY (session);

--
-- Name: event event_id_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.event
    ADD CONSTRAINT event_id_key UNIQUE (id);

--
-- Name: event event_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (session, seq);

--
-- Name: execution execution_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.execution
    ADD CONSTRAINT execution_pkey PRIMARY KEY (session, id);

--
-- Name: input input_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.input
    ADD CONSTRAINT input_pkey PRIMARY KEY (id);

--
-- Name: input input_session_seq_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.input
    ADD CONSTRAINT input_session_seq_key UNIQUE (session, seq);

--
-- Name: item item_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.item
    ADD CONSTRAINT item_pkey PRIMARY KEY (session, seq, n);

--
-- Name: kind kind_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.kind
    ADD CONSTRAINT kind_pkey PRIMARY KEY (type, version);

--
-- Name: meta meta_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);

--
-- Name: node node_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.node
    ADD CONSTRAINT node_pkey PRIMARY KEY (id);

--
-- Name: plugin plugin_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.plugin
    ADD CONSTRAINT plugin_pkey PRIMARY KEY (digest);

--
-- Name: scanned scanned_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.scanned
    ADD CONSTRAINT scanned_pkey PRIMARY KEY (what, session);

--
-- Name: session session_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.session
    ADD CONSTRAINT session_pkey PRIMARY KEY (id);

--
-- Name: step step_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.step
    ADD CONSTRAINT step_pkey PRIMARY KEY (session, seq);

--
-- Name: claim_execution; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX claim_execution ON public.claim USING btree (execution);

--
-- Name: claim_expiry; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX claim_expiry ON public.claim USING btree (expires_at, session);

--
-- Name: event_call_result; Type: INDEX; Schema: public; Owner: -
--

CREATE UNIQUE INDEX event_call_result ON public.event USING btree (session, step, call) WHERE (type = 'call.settled'::text);

--
-- Name: input_pending; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX input_pending ON public.input USING btree (session, seq) WHERE (status = 'pending'::text);

--
-- Name: session_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX session_due ON public.session USING btree (due, id) WHERE (due IS NOT NULL);

--
-- Name: session_newest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX session_newest ON public.session USING btree (created_at, id);

--
-- Name: session_owing; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX session_owing ON public.session USING btree (owing, id) WHERE (owing IS NOT NULL);

--
-- Name: session_step; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX session_step ON public.session USING btree (id) WHERE stepping;

--
-- Name: session_timer; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX session_timer ON public.session USING btree (wake_at, id) WHERE (wake_at IS NOT NULL);

--
-- Name: alias alias_changed; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER alias_changed AFTER INSERT OR DELETE OR UPDATE ON public.alias FOR EACH STATEMENT EXECUTE FUNCTION public.alias_changed();

--
-- Name: alias alias_moved; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER alias_moved AFTER DELETE OR UPDATE ON public.alias FOR EACH ROW EXECUTE FUNCTION public.alias_moved();

--
-- Name: event event_call_result_after_call; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER event_call_result_after_call BEFORE INSERT ON public.event FOR EACH ROW WHEN ((new.type = 'call.settled'::text)) EXECUTE FUNCTION public.event_call_result_after_call();

--
-- PostgreSQL database dump complete
--
