-- The log and its projections. Rows keep their whole value as JSON in `data`; the columns beside it are
-- what queries select by. Ids are UUIDs as text, times are milliseconds since 1970.

CREATE TABLE event (
    session   TEXT    NOT NULL,
    seq       INTEGER NOT NULL CHECK (seq > 0),
    id        TEXT    NOT NULL UNIQUE,
    type      TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    execution TEXT,
    recovery  TEXT,
    data      TEXT    NOT NULL,
    -- SHA-256 of the data as they were written, where these are their stub.
    compacted TEXT,
    PRIMARY KEY (session, seq),
    -- Recovery's events name no execution as their writer.
    CHECK (execution IS NULL OR recovery IS NULL)
) STRICT;

-- The types and versions that events in this file have, whichever build wrote them.
CREATE TABLE kind (
    type    TEXT    NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (type, version)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER event_kind
AFTER INSERT ON event
WHEN NOT EXISTS (SELECT 1 FROM kind WHERE type = NEW.type AND version = NEW.version)
BEGIN
    INSERT INTO kind (type, version) VALUES (NEW.type, NEW.version);
END;

-- Of each session the first event that the build which opened the file last does not know.
CREATE TABLE foreign_event (
    session TEXT    NOT NULL PRIMARY KEY,
    seq     INTEGER NOT NULL,
    type    TEXT    NOT NULL,
    version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One result per call, whoever writes it.
CREATE UNIQUE INDEX event_call_result
    ON event (session, data -> '$.step', data -> '$.result.call')
    WHERE type = 'call.settled';

CREATE TABLE session (
    id         TEXT    NOT NULL PRIMARY KEY,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    head       INTEGER NOT NULL,
    -- Seq of the open step, and whether there is one: an index over the seq would change with each step.
    step       INTEGER,
    stepping   INTEGER NOT NULL,
    runnable   INTEGER NOT NULL,
    -- Runnable and not claimed.
    due        INTEGER NOT NULL,
    -- When its wait's timer is due.
    wake_at    INTEGER,
    -- Its outbox is not empty.
    owing      INTEGER NOT NULL,
    -- The last seq whose items are shown, where a revert hides some.
    shown      INTEGER,
    data       TEXT    NOT NULL
) STRICT;

CREATE INDEX session_newest ON session (created_at, id);
CREATE INDEX session_due ON session (updated_at, id) WHERE due;
CREATE INDEX session_timer ON session (wake_at, id) WHERE wake_at IS NOT NULL;
CREATE INDEX session_owing ON session (updated_at, id) WHERE owing;
CREATE INDEX session_step ON session (id) WHERE stepping;

-- At most one per session.
CREATE TABLE claim (
    session    TEXT    NOT NULL PRIMARY KEY,
    execution  TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    expires_at INTEGER NOT NULL,
    data       TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX claim_execution ON claim (execution);
CREATE INDEX claim_expiry ON claim (expires_at, session);

CREATE TABLE input (
    id      TEXT    NOT NULL PRIMARY KEY,
    session TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    status  TEXT    NOT NULL,
    intent  INTEGER NOT NULL,
    data    TEXT    NOT NULL,
    UNIQUE (session, seq)
) STRICT;

CREATE INDEX input_pending ON input (session, seq) WHERE status = 'pending';

CREATE TABLE item (
    session    TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    -- Position among the items that one event began.
    n          INTEGER NOT NULL,
    is_message INTEGER NOT NULL,
    -- Of text.
    bytes      INTEGER NOT NULL,
    -- The items of the session up to this one, and their bytes.
    items_to   INTEGER NOT NULL DEFAULT 0,
    bytes_to   INTEGER NOT NULL DEFAULT 0,
    data       TEXT    NOT NULL,
    PRIMARY KEY (session, seq, n)
) STRICT;

CREATE TABLE step (
    session    TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    settled_at INTEGER,
    runner     TEXT    NOT NULL,
    provider   TEXT,
    usage      TEXT,
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE call (
    session TEXT    NOT NULL,
    step    INTEGER NOT NULL,
    -- The call's id as JSON text: a model chose it, and it may hold anything.
    id      TEXT    NOT NULL,
    status  TEXT    NOT NULL,
    data    TEXT    NOT NULL,
    PRIMARY KEY (session, step, id)
) STRICT, WITHOUT ROWID;

-- And none before its call.
CREATE TRIGGER event_call_result_after_call
BEFORE INSERT ON event WHEN NEW.type = 'call.settled'
BEGIN
    SELECT raise(ABORT, 'a result before its call')
     WHERE NOT EXISTS (
        SELECT 1 FROM call
         WHERE session = NEW.session
           AND step = NEW.data ->> '$.step'
           AND id = NEW.data -> '$.result.call'
     );
END;

CREATE TABLE execution (
    session  TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    owner    TEXT    NOT NULL,
    -- 0 where its start is not in the log.
    started  INTEGER NOT NULL,
    ended    INTEGER,
    terminal TEXT,
    PRIMARY KEY (session, id)
) STRICT, WITHOUT ROWID;

-- Bytes under their SHA-256.
CREATE TABLE blob (
    digest TEXT NOT NULL PRIMARY KEY,
    bytes  BLOB NOT NULL
) STRICT;

CREATE TABLE plugin (
    digest TEXT NOT NULL PRIMARY KEY,
    kind   TEXT NOT NULL,
    data   TEXT NOT NULL,
    bytes  BLOB NOT NULL
) STRICT;

CREATE TABLE alias (
    kind   TEXT NOT NULL,
    alias  TEXT NOT NULL,
    digest TEXT NOT NULL,
    -- The registry's artifact that it was loaded from.
    source TEXT,
    PRIMARY KEY (kind, alias)
) STRICT, WITHOUT ROWID;

-- Each process start, as it told of itself with its last renewal.
CREATE TABLE node (
    -- The owner that its claims name.
    id          TEXT    NOT NULL PRIMARY KEY,
    version     TEXT    NOT NULL,
    address     TEXT,
    host        TEXT,
    pid         INTEGER,
    capacity    INTEGER NOT NULL,
    load        INTEGER NOT NULL,
    draining    INTEGER NOT NULL,
    -- A wish: the node reads it with its next renewal.
    drain_asked INTEGER NOT NULL DEFAULT 0,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    stopped_at  INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (
    key   TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The name by which this store's sessions are known elsewhere.
INSERT INTO meta (key, value) VALUES ('name', 'store:' || lower(hex(randomblob(16))));
