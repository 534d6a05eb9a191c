PRAGMA application_id = 1299084148;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO _sqlx_migrations VALUES (1, 'initial', '2026-12-01 03:26:33', 1, X'B4BF0F2D6486DC9D01E688028459248842362EDAEB9F9A34B6DF21BCF7487BF9308A0424DB66687A71EDCBE306016231', 1690875);
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
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 1, '01a22fa3-cb04-71d7-bfc5-2f3988dd65bb', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 2, '01a22fa3-cb0c-7598-a572-e9c765e30989', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"9574a2dc-54b0-5082-9949-30bf682de899","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 3, '01a22fa3-cb0d-716c-8e55-77b2ab4b1bef', 'execution.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"execution":"1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 4, '01a22fa3-cafc-76a1-9831-5a6772442e20', 'turn.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"steps":10}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 5, '01a22fa3-cafc-76a1-9831-5a685d18f1f3', 'input.promoted', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"input":"9574a2dc-54b0-5082-9949-30bf682de899"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 6, '01a22fa3-cafc-76a1-9831-5a69d8fed4d7', 'step.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"toolboxes":[],"action":{"call_tools":[{"id":"a","tool":"tool","arguments":"{}"}]},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 7, '01a22fa3-cb10-77d6-89a4-ae9130101a34', 'call.settled', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"step":6,"result":{"call":"a","tool":"tool","outcome":"succeeded","output":[{"text":"done"}]},"timing":{"total_ms":0}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 8, '01a22fa3-cb10-77d6-89a4-ae9255e7d637', 'step.started', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"provider":{"alias":"provider","name":"provider","digest":"d-provider","model":"model"},"toolboxes":[],"action":{"call_model":{"transcript":[{"items":{"after":0,"through":9223372036854775807}}],"tools":"all"}},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000001', 9, '01a22fa3-cb11-74e2-843d-70c5863f0569', 'step.output', 1, 1700000000000, '1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5', NULL, '{"step":8,"pieces":[{"call":{"id":"b","tool":"tool"}},{"arguments":{"id":"b","text":"{}"}},{"call_ready":{"id":"b"}}]}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 1, '01a22fa3-cb12-7185-8ab1-a873d9b9d0da', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 2, '01a22fa3-cb12-7185-8ab1-a874d322f7cc', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"8a843c33-cc7a-5192-8328-403ada52560a","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 3, '01a22fa3-cb13-77d3-aa35-e8c23a1a4081', 'execution.started', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"execution":"a4923d61-9520-533b-9582-f4db05fd8f6b","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 4, '01a22fa3-cb11-74e2-843d-70c6321ae382', 'turn.started', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"steps":10}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 5, '01a22fa3-cb11-74e2-843d-70c72703d4bf', 'input.promoted', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"input":"8a843c33-cc7a-5192-8328-403ada52560a"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 6, '01a22fa3-cb11-74e2-843d-70c88329af23', 'step.started', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"toolboxes":[],"action":{"wait":{"until":[{"approval":{"key":"k","question":"may I?","details":null}},{"time":1700000060000}]}},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 7, 'e3a65216-7a59-5a6b-ab97-37b522b9c785', 'execution.suspended', 1, 1700000000000, 'a4923d61-9520-533b-9582-f4db05fd8f6b', NULL, '{"execution":"a4923d61-9520-533b-9582-f4db05fd8f6b"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000002', 8, '01a22fa3-cb19-7698-836f-3e8ff8778f2a', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"e7640800-0854-51b1-8159-e8c357ea5517","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"later"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 1, '01a22fa3-cb1a-7344-9e30-72d11152442f', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 2, '01a22fa3-cb1a-7344-9e30-72d22b9c8b47', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"f8133144-f5a6-57a7-b850-1b46a68d9b7b","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 3, '01a22fa3-cb1b-7217-bfee-eda327c97a1f', 'execution.started', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, '{"execution":"e56900a9-df8d-55da-a70d-1d2998e9b47e","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 4, '01a22fa3-cb1a-7344-9e30-72ce7b6e0ef1', 'turn.started', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, '{"steps":10}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 5, '01a22fa3-cb1a-7344-9e30-72cf795d0ea4', 'input.promoted', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, '{"input":"f8133144-f5a6-57a7-b850-1b46a68d9b7b"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 6, '01a22fa3-cb1a-7344-9e30-72d0b2717937', 'step.started', 1, 1700000000000, 'e56900a9-df8d-55da-a70d-1d2998e9b47e', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"provider":{"alias":"provider","name":"provider","digest":"d-provider","model":"model"},"toolboxes":[],"action":{"call_model":{"transcript":[{"items":{"after":0,"through":9223372036854775807}}],"tools":"all"}},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 7, 'b71a528d-8ae4-52bc-aca3-cd1dcc1bdb7f', 'execution.interrupted', 1, 1700000000000, NULL, '075e0ee4-8425-5085-bc19-a09d93542217', '{"execution":"e56900a9-df8d-55da-a70d-1d2998e9b47e","reason":"crash"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 8, '1f2a8120-2259-5331-82d9-5df7e0f6890d', 'recovery.recorded', 1, 1700000000000, NULL, '075e0ee4-8425-5085-bc19-a09d93542217', '{"recovery":"075e0ee4-8425-5085-bc19-a09d93542217","execution":"e56900a9-df8d-55da-a70d-1d2998e9b47e","phase":"unknown","attempts":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000003', 9, '60cc5f28-a98c-5cc2-a512-e831441a0b8a', 'session.quarantined', 1, 1700000000000, NULL, '075e0ee4-8425-5085-bc19-a09d93542217', '{"reason":"its recovery does not fit its log"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 1, '01a22fa3-cb1c-7328-a1bb-40c116e9490e', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 2, '01a22fa3-cb1d-76b1-b6ac-003ea6a19329', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"f8fbbd1d-03f9-560d-a0cf-38432adc95fb","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"hello"}]}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 3, '01a22fa3-cb1d-76b1-b6ac-003f85511527', 'execution.started', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"execution":"a79c16e7-c248-528f-9c57-13b797b1c38e","owner":"00000000-0000-0000-0000-000000000009"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 4, '01a22fa3-cb1c-7328-a1bb-40be80f8a756', 'turn.started', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"steps":10}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 5, '01a22fa3-cb1c-7328-a1bb-40bf61d80fb7', 'input.promoted', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"input":"f8fbbd1d-03f9-560d-a0cf-38432adc95fb"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 6, '01a22fa3-cb1c-7328-a1bb-40c0078df07d', 'step.started', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"basis":{"now":1700000000000,"trigger":"turn_started","fresh":{"after":0,"through":0},"context":{"after":0,"through":0},"budget":{"steps":10}},"runner":{"alias":"test","name":"test","digest":"d-runner"},"toolboxes":[],"action":{"spawn":[{"key":"c","agent":null,"prompt":[{"text":"do"}]}]},"decide_us":0}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 7, '01a22fa3-cb1e-77a9-88d0-841dc6820f63', 'turn.ended', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"outcome":{"outcome":"done"}}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000004', 8, 'e0a450bc-4283-5aa7-b582-c6af366832e6', 'execution.succeeded', 1, 1700000000000, 'a79c16e7-c248-528f-9c57-13b797b1c38e', NULL, '{"execution":"a79c16e7-c248-528f-9c57-13b797b1c38e"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000005', 1, '01a22fa3-cb1f-7265-9999-cd521e744756', 'session.created', 1, 1700000000000, NULL, NULL, '{"agent":"test"}', NULL);
INSERT INTO event VALUES ('00000000-0000-0000-0000-000000000005', 2, '01a22fa3-cb24-7145-8b25-260398bd99b8', 'input.admitted', 1, 1700000000000, NULL, NULL, '{"input":"164ef5fd-45b3-5636-8d15-ac1e2f3f7d91","delivery":"queue","content":{"kind":"prompt","parts":[{"text":"later"}]}}', NULL);
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
    -- Seq of the open step.
    step       INTEGER,
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
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000001', 1700000000000, 1700000000000, 9, 8, 1, 0, NULL, 0, NULL, '{"id":"00000000-0000-0000-0000-000000000001","agent":"test","model":null,"title":null,"head":9,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"execution":"1851c4fa-70c9-5ed6-b8bf-9d2d6a2113a5","turn":{"began":4,"steps_left":8,"steps":10,"settled_steps":1},"last_turn":null,"step":8,"trigger":"tools_finished","seen":7,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":null,"cancelled":false,"foreign":null}');
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000002', 1700000000000, 1700000000000, 8, NULL, 0, 0, 1700000060000, 0, NULL, '{"id":"00000000-0000-0000-0000-000000000002","agent":"test","model":null,"title":null,"head":8,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":{"began":4,"steps_left":9,"steps":10,"settled_steps":1},"wait":{"step":6,"until":[{"approval":{"key":"k","question":"may I?","details":null}},{"time":1700000060000}],"wake_at":1700000060000},"arrived":{"approvals":{"k":{"step":6,"at":1700000000000,"request":{"key":"k","question":"may I?","details":null}}}},"last_turn":null,"step":null,"trigger":"turn_started","seen":5,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":null,"cancelled":false,"foreign":null}');
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000003', 1700000000000, 1700000000000, 9, 6, 0, 0, NULL, 0, NULL, '{"id":"00000000-0000-0000-0000-000000000003","agent":"test","model":null,"title":null,"head":9,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":{"began":4,"steps_left":9,"steps":10,"settled_steps":0},"last_turn":null,"step":6,"trigger":"turn_started","seen":5,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":"its recovery does not fit its log","cancelled":false,"foreign":null}');
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000004', 1700000000000, 1700000000000, 8, NULL, 0, 0, NULL, 1, NULL, '{"id":"00000000-0000-0000-0000-000000000004","agent":"test","model":null,"title":null,"head":8,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":null,"children":[{"key":"c","session":"bd758bca-9e73-5685-9d92-217ca0d32407"}],"outbox":[{"kind":"spawn","child":"bd758bca-9e73-5685-9d92-217ca0d32407","agent":"test","parent":{"session":"00000000-0000-0000-0000-000000000004","key":"c","depth":1},"prompt":[{"text":"do"}]}],"last_turn":{"outcome":"done"},"step":null,"trigger":"spawned","seen":5,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":null,"cancelled":false,"foreign":null}');
INSERT INTO session VALUES ('00000000-0000-0000-0000-000000000005', 1700000000000, 1700000000000, 2, NULL, 1, 1, NULL, 0, NULL, '{"id":"00000000-0000-0000-0000-000000000005","agent":"test","model":null,"title":null,"head":2,"created_at":1700000000000,"updated_at":1700000000000,"active_at":1700000000000,"turn":null,"last_turn":null,"step":null,"trigger":"turn_started","seen":1,"context_after":0,"open_calls":[],"usage":{"input_tokens":0,"output_tokens":0,"cost":0},"failed_calls":0,"attempts":0,"quarantined":null,"cancelled":false,"foreign":null}');
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
INSERT INTO meta VALUES ('name', 'store:5a3d468d91701b4166032c6c07b1e1fd');
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
CREATE INDEX session_step ON session (id) WHERE step IS NOT NULL;
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
