PRAGMA application_id = 1299084148;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO _sqlx_migrations VALUES (1, 'initial', '2026-12-01 07:34:12', 1, X'6D94046627109B1804B615EE09CF9C0C9BD6B583A4459CC6C9A90428BEADFCCCD4694709C8F64D2CFC87A82BB15647DC', 4234233);
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
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 1, '01a23086-88d4-7030-b078-b954cc5d27e8', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 2, '01a23086-88d6-7725-8dc7-d01af389e10f', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"9574a2dc-54b0-5082-9949-30bf682de899","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 3, '01a23086-88d7-73cd-91ee-fd4eb9a28ccf', 'execution.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"execution":"1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 4, '01a23086-88d2-77c6-b9ee-19c686eaa8a7', 'turn.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"steps":10}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 5, '01a23086-88d2-77c6-b9ee-19c75d47187f', 'input.promoted', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"input":"9574a2dc-54b0-5082-9949-30bf682de899"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 6, '01a23086-88d2-77c6-b9ee-19c8eaeb316e', 'step.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"toolboxes":[],"action":{"call_tools":[{"id":"a","tool":"tool","arguments":"{}"}]},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 7, '01a23086-88da-73b1-a3ec-b36688c965a2', 'call.settled', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"step":6,"result":{"call":"a","tool":"tool","outcome":"succeeded","output":[{"text":"done"}]},"timing":{"total_ms":0}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 8, '01a23086-88da-73b1-a3ec-b3676faa8c24', 'step.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"provider":{"alias":"provider","name":"provider","digest":"d-provider","model":"model"},"toolboxes":[],"action":{"call_model":{"transcript":[{"items":{"after":0,"through":9223372036854775807}}],"tools":"all"}},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 9, '01a23086-88db-7034-bb55-b2c257054ae5', 'step.output', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"step":8,"pieces":[{"call":{"id":"b","tool":"tool"}},{"arguments":{"id":"b","text":"{}"}},{"call_ready":{"id":"b"}}]}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 1, '01a23086-88dd-7227-b46f-ff4d4a85a822', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 2, '01a23086-88df-7115-83bb-dd1ddb39f52e', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"8a843c33-cc7a-5192-8328-403ada52560a","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 3, '01a23086-88e0-7646-8a3e-a6e37c8e906a', 'execution.started', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"execution":"a4923d61-9520-533b-9582-f4db05fd8f6b","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 4, '01a23086-88dd-7227-b46f-ff4ac409112d', 'turn.started', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"steps":10}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 5, '01a23086-88dd-7227-b46f-ff4b4634bf7f', 'input.promoted', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"input":"8a843c33-cc7a-5192-8328-403ada52560a"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 6, '01a23086-88dd-7227-b46f-ff4c6cd4a9e7', 'step.started', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"toolboxes":[],"action":{"wait":{"until":[{"approval":{"key":"k","question":"may I?","details":null}},{"time":1700000060000}]}},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 7, 'e3a65216-7a59-5a6b-ab97-37b522b9c785', 'execution.suspended', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"execution":"a4923d61-9520-533b-9582-f4db05fd8f6b"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 8, '01a23086-88e4-72b2-912b-2526b6610f14', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"e7640800-0854-51b1-8159-e8c357ea5517","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"later"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 1, '01a23086-88e6-7659-be9e-86693fe01593', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 2, '01a23086-88e7-71c3-adb0-c3e089a2a38e', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"f8133144-f5a6-57a7-b850-1b46a68d9b7b","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 3, '01a23086-88e8-74ea-8724-28fc4063a7b3', 'execution.started', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, '{"execution":"e56900a9-df8d-55da-a70d-1d2998e9b47e","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 4, '01a23086-88e5-71b0-9fac-7ef6d03b9a36', 'turn.started', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, '{"steps":10}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 5, '01a23086-88e5-71b0-9fac-7ef7a91f7ade', 'input.promoted', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, '{"input":"f8133144-f5a6-57a7-b850-1b46a68d9b7b"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 6, '01a23086-88e5-71b0-9fac-7ef854d9859b', 'step.started', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"provider":{"alias":"provider","name":"provider","digest":"d-provider","model":"model"},"toolboxes":[],"action":{"call_model":{"transcript":[{"items":{"after":0,"through":9223372036854775807}}],"tools":"all"}},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 7, 'b71a528d-8ae4-52bc-aca3-cd1dcc1bdb7f', 'execution.interrupted', 1, 1700000000000, NULL, '075e0ee4-8425-5085-bc19-a09d93542217', '{"execution":"e56900a9-df8d-55da-a70d-1d2998e9b47e","reason":"crash"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 8, '1f2a8120-2259-5331-82d9-5df7e0f6890d', 'recovery.recorded', 1, 1700000000000, NULL, '075e0ee4-8425-5085-bc19-a09d93542217', '{"recovery":"075e0ee4-8425-5085-bc19-a09d93542217","execution":"e56900a9-df8d-55da-a70d-1d2998e9b47e","phase":"unknown","attempts":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 9, '60cc5f28-a98c-5cc2-a512-e831441a0b8a', 'session.quarantined', 1, 1700000000000, NULL, '075e0ee4-8425-5085-bc19-a09d93542217', '{"reason":"its recovery does not fit its log"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 1, '01a23086-88eb-7015-b37b-517af3e89ffe', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 2, '01a23086-88ed-76fb-aae1-d5fe83d7d3b6', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"f8fbbd1d-03f9-560d-a0cf-38432adc95fb","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 3, '01a23086-88ee-7791-bbd0-7bc2649031be', 'execution.started', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"execution":"a79c16e7-c248-528f-9c57-13b797b1c38e","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 4, '01a23086-88eb-7015-b37b-51770c7d9b6c', 'turn.started', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"steps":10}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 5, '01a23086-88eb-7015-b37b-5178d2a5bcb4', 'input.promoted', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"input":"f8fbbd1d-03f9-560d-a0cf-38432adc95fb"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 6, '01a23086-88eb-7015-b37b-5179441854f8', 'step.started', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"toolboxes":[],"action":{"spawn":[{"key":"c","agent":null,"prompt":[{"text":"do"}]}]},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 7, '01a23086-88f0-75be-9eb2-d30d43c2f604', 'turn.ended', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"outcome":{"outcome":"done"}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 8, 'e0a450bc-4283-5aa7-b582-c6af366832e6', 'execution.succeeded', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"execution":"a79c16e7-c248-528f-9c57-13b797b1c38e"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000005', 1, '01a23086-88f3-7293-b210-347498f150e5', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000005', 2, '01a23086-88f4-70a8-b13b-688514601d6e', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"164ef5fd-45b3-5636-8d15-ac1e2f3f7d91","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"later"}]}}', NULL);
CREATE TABLE kind (
    type    TEXT    NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (type, version)
) STRICT, WITHOUT ROWID;
INSERT INTO kind VALUES ('call.settled', 1);
INSERT INTO kind VALUES ('execution.interrupted', 1);
INSERT INTO kind VALUES ('execution.started', 1);
INSERT INTO kind VALUES ('execution.succeeded', 1);
INSERT INTO kind VALUES ('execution.suspended', 1);
INSERT INTO kind VALUES ('input.admitted', 1);
INSERT INTO kind VALUES ('input.promoted', 1);
INSERT INTO kind VALUES ('recovery.recorded', 1);
INSERT INTO kind VALUES ('session.created', 1);
INSERT INTO kind VALUES ('session.quarantined', 1);
INSERT INTO kind VALUES ('step.output', 1);
INSERT INTO kind VALUES ('step.started', 1);
INSERT INTO kind VALUES ('turn.ended', 1);
INSERT INTO kind VALUES ('turn.started', 1);
CREATE TABLE foreign_event (
    session TEXT    NOT NULL PRIMARY KEY,
    seq     INTEGER NOT NULL,
    type    TEXT    NOT NULL,
    version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
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
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000001', 1700000000000, 1700000000000, 9, 8, 1, 1, 0, NULL, 0, NULL, '{"id":"00000000-0000-0000-0000-000000000001","agent":"test","head":9,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"execution":"1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5","turn":{"began":4,"steps_left":8,"steps":10,"settled_steps":1},"step":8,"trigger":"tools_finished","seen":7,"context_after":0}');
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000002', 1700000000000, 1700000000000, 8, NULL, 0, 0, 0, 1700000060000, 0, NULL, '{"id":"00000000-0000-0000-0000-000000000002","agent":"test","head":8,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":{"began":4,"steps_left":9,"steps":10,"settled_steps":1},"wait":{"step":6,"until":[{"approval":{"key":"k","question":"may I?","details":null}},{"time":1700000060000}],"wake_at":1700000060000},"arrived":{"approvals":{"k":{"step":6,"at":1700000000000,"request":{"key":"k","question":"may I?","details":null}}}},"trigger":"turn_started","seen":5,"context_after":0}');
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000003', 1700000000000, 1700000000000, 9, 6, 1, 0, 0, NULL, 0, NULL, '{"id":"00000000-0000-0000-0000-000000000003","agent":"test","head":9,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":{"began":4,"steps_left":9,"steps":10,"settled_steps":0},"step":6,"trigger":"turn_started","seen":5,"context_after":0,"quarantined":"its recovery does not fit its log"}');
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000004', 1700000000000, 1700000000000, 8, NULL, 0, 0, 0, NULL, 1, NULL, '{"id":"00000000-0000-0000-0000-000000000004","agent":"test","head":8,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"children":[{"key":"c","session":"bd758bca-9e73-5685-9d92-217ca0d32407"}],"outbox":[{"kind":"spawn","child":"bd758bca-9e73-5685-9d92-217ca0d32407","agent":"test","parent":{"session":"00000000-0000-0000-0000-000000000004","key":"c","depth":1},"prompt":[{"text":"do"}]}],"last_turn":{"outcome":"done"},"trigger":"spawned","seen":5,"context_after":0}');
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000005', 1700000000000, 1700000000000, 2, NULL, 0, 1, 1, NULL, 0, NULL, '{"id":"00000000-0000-0000-0000-000000000005","agent":"test","head":2,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"trigger":"turn_started","seen":1,"context_after":0}');
CREATE TABLE claim (
    session    TEXT    NOT NULL PRIMARY KEY,
    execution  TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    expires_at INTEGER NOT NULL,
    data       TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO claim VALUES ('00000000-0000-0000-0000-000000000001', '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', '00000000-0000-0000-0000-000000000009', 1700000030000, '{"session":"00000000-0000-0000-0000-000000000001","execution":"1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5","owner":"00000000-0000-0000-0000-000000000009","expires_at":1700000030000,"phase":"unknown","step":8,"interrupt":false,"ended":false,"resumed":false,"superseded":false}');
CREATE TABLE input (
    id      TEXT    NOT NULL PRIMARY KEY,
    session TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    status  TEXT    NOT NULL,
    intent  INTEGER NOT NULL,
    data    TEXT    NOT NULL,
    UNIQUE (session, seq)
) STRICT;
INSERT INTO input VALUES ('164ef5fd-45b3-5636-8d15-ac1e2f3f7d91', '00000000-0000-0000-0000-000000000005', 2, 'pending', 1, '{"id":"164ef5fd-45b3-5636-8d15-ac1e2f3f7d91","session":"00000000-0000-0000-0000-000000000005","seq":2,"at":1700000000000,"delivery":"queue","status":"pending","intent":true,"content":{"kind":"prompt","parts":[{"text":"later"}]}}');
INSERT INTO input VALUES ('8a843c33-cc7a-5192-8328-403ada52560a', '00000000-0000-0000-0000-000000000002', 2, 'promoted', 0, '{"id":"8a843c33-cc7a-5192-8328-403ada52560a","session":"00000000-0000-0000-0000-000000000002","seq":2,"at":1700000000000,"delivery":"queue","status":"promoted","intent":false,"content":{"kind":"prompt","parts":[{"text":"hello"}]}}');
INSERT INTO input VALUES ('9574a2dc-54b0-5082-9949-30bf682de899', '00000000-0000-0000-0000-000000000001', 2, 'promoted', 0, '{"id":"9574a2dc-54b0-5082-9949-30bf682de899","session":"00000000-0000-0000-0000-000000000001","seq":2,"at":1700000000000,"delivery":"queue","status":"promoted","intent":false,"content":{"kind":"prompt","parts":[{"text":"hello"}]}}');
INSERT INTO input VALUES ('e7640800-0854-51b1-8159-e8c357ea5517', '00000000-0000-0000-0000-000000000002', 8, 'pending', 1, '{"id":"e7640800-0854-51b1-8159-e8c357ea5517","session":"00000000-0000-0000-0000-000000000002","seq":8,"at":1700000000000,"delivery":"queue","status":"pending","intent":true,"content":{"kind":"prompt","parts":[{"text":"later"}]}}');
INSERT INTO input VALUES ('f8133144-f5a6-57a7-b850-1b46a68d9b7b', '00000000-0000-0000-0000-000000000003', 2, 'promoted', 0, '{"id":"f8133144-f5a6-57a7-b850-1b46a68d9b7b","session":"00000000-0000-0000-0000-000000000003","seq":2,"at":1700000000000,"delivery":"queue","status":"promoted","intent":false,"content":{"kind":"prompt","parts":[{"text":"hello"}]}}');
INSERT INTO input VALUES ('f8fbbd1d-03f9-560d-a0cf-38432adc95fb', '00000000-0000-0000-0000-000000000004', 2, 'promoted', 0, '{"id":"f8fbbd1d-03f9-560d-a0cf-38432adc95fb","session":"00000000-0000-0000-0000-000000000004","seq":2,"at":1700000000000,"delivery":"queue","status":"promoted","intent":false,"content":{"kind":"prompt","parts":[{"text":"hello"}]}}');
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
INSERT INTO item VALUES ('00000000-0000-0000-0000-000000000001', 5, 0, 1, 5, 1, 5, '{"seq":5,"at":1700000000000,"body":{"kind":"user","data":[{"text":"hello"}]}}');
INSERT INTO item VALUES ('00000000-0000-0000-0000-000000000001', 6, 0, 1, 6, 2, 11, '{"seq":6,"at":1700000000000,"body":{"kind":"assistant","data":{"author":{"runner":"test"},"content":[{"tool_call":{"id":"a","tool":"tool","arguments":"{}"}}],"ending":{"finished":"tool_calls"}}}}');
INSERT INTO item VALUES ('00000000-0000-0000-0000-000000000001', 7, 0, 1, 4, 3, 15, '{"seq":7,"at":1700000000000,"body":{"kind":"tool_result","data":{"call":"a","tool":"tool","outcome":"succeeded","output":[{"text":"done"}]}}}');
INSERT INTO item VALUES ('00000000-0000-0000-0000-000000000002', 5, 0, 1, 5, 1, 5, '{"seq":5,"at":1700000000000,"body":{"kind":"user","data":[{"text":"hello"}]}}');
INSERT INTO item VALUES ('00000000-0000-0000-0000-000000000003', 5, 0, 1, 5, 1, 5, '{"seq":5,"at":1700000000000,"body":{"kind":"user","data":[{"text":"hello"}]}}');
INSERT INTO item VALUES ('00000000-0000-0000-0000-000000000004', 5, 0, 1, 5, 1, 5, '{"seq":5,"at":1700000000000,"body":{"kind":"user","data":[{"text":"hello"}]}}');
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
INSERT INTO step VALUES ('00000000-0000-0000-0000-000000000001', 6, 1700000000000, 1700000000000, '{"alias":"test","name":"test","digest":"d-runner"}', NULL, NULL);
INSERT INTO step VALUES ('00000000-0000-0000-0000-000000000001', 8, 1700000000000, NULL, '{"alias":"test","name":"test","digest":"d-runner"}', 'd-provider', NULL);
INSERT INTO step VALUES ('00000000-0000-0000-0000-000000000002', 6, 1700000000000, 1700000000000, '{"alias":"test","name":"test","digest":"d-runner"}', NULL, NULL);
INSERT INTO step VALUES ('00000000-0000-0000-0000-000000000003', 6, 1700000000000, NULL, '{"alias":"test","name":"test","digest":"d-runner"}', 'd-provider', NULL);
INSERT INTO step VALUES ('00000000-0000-0000-0000-000000000004', 6, 1700000000000, 1700000000000, '{"alias":"test","name":"test","digest":"d-runner"}', NULL, NULL);
CREATE TABLE call (
    session TEXT    NOT NULL,
    step    INTEGER NOT NULL,
    -- The call's id as JSON text: a model chose it, and it may hold anything.
    id      TEXT    NOT NULL,
    status  TEXT    NOT NULL,
    data    TEXT    NOT NULL,
    PRIMARY KEY (session, step, id)
) STRICT, WITHOUT ROWID;
INSERT INTO call VALUES ('00000000-0000-0000-0000-000000000001', 6, '"a"', 'settled', '{"session":"00000000-0000-0000-0000-000000000001","step":6,"id":"a","tool":"tool","effect":null,"status":"settled","own":false,"hosted":false,"key":null,"runs":0,"result":7}');
INSERT INTO call VALUES ('00000000-0000-0000-0000-000000000001', 8, '"b"', 'ready', '{"session":"00000000-0000-0000-0000-000000000001","step":8,"id":"b","tool":"tool","effect":null,"status":"ready","own":false,"hosted":false,"key":null,"runs":0,"result":null}');
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
INSERT INTO execution VALUES ('00000000-0000-0000-0000-000000000001', '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', '00000000-0000-0000-0000-000000000009', 3, NULL, NULL);
INSERT INTO execution VALUES ('00000000-0000-0000-0000-000000000002', 'a4923d61-9520-533b-9582-f4db05fd8f6b', '00000000-0000-0000-0000-000000000009', 3, 7, 'execution.suspended');
INSERT INTO execution VALUES ('00000000-0000-0000-0000-000000000003', 'e56900a9-df8d-55da-a70d-1d2998e9b47e', '00000000-0000-0000-0000-000000000009', 3, 7, 'execution.interrupted');
INSERT INTO execution VALUES ('00000000-0000-0000-0000-000000000004', 'a79c16e7-c248-528f-9c57-13b797b1c38e', '00000000-0000-0000-0000-000000000009', 3, 8, 'execution.succeeded');
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
INSERT INTO meta VALUES ('name', 'store:8d15895509a018b3b3ce55bd26ca436e');
CREATE TRIGGER event_kind
AFTER INSERT ON event
WHEN NOT EXISTS (SELECT 1 FROM kind WHERE type = NEW.type AND version = NEW.version)
BEGIN
    INSERT INTO kind (type, version) VALUES (NEW.type, NEW.version);
END;
CREATE UNIQUE INDEX event_call_result
    ON event (session, data -> '$.step', data -> '$.result.call')
    WHERE type = 'call.settled';
CREATE INDEX session_newest ON session (created_at, id);
CREATE INDEX session_due ON session (updated_at, id) WHERE due;
CREATE INDEX session_timer ON session (wake_at, id) WHERE wake_at IS NOT NULL;
CREATE INDEX session_owing ON session (updated_at, id) WHERE owing;
CREATE INDEX session_step ON session (id) WHERE stepping;
CREATE INDEX claim_execution ON claim (execution);
CREATE INDEX claim_expiry ON claim (expires_at, session);
CREATE INDEX input_pending ON input (session, seq) WHERE status = 'pending';
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
