/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * A guest's front of the test: it writes slots, indices and keys by hand, right and wrong ones. It
 * shares nothing with the back but the layouts of Xen's headers.
 */
#ifndef PREGRANT_FRONT_H
#define PREGRANT_FRONT_H

#include <xen/interface/io/netif.h>
#include <xen/interface/io/xenbus.h>

#include "driver.h"

/* A ring's page: its indices, as words; where slots begin, and the bytes of one. */
#define REQ_PROD 0
#define REQ_EVENT 1
#define RSP_PROD 2
#define RSP_EVENT 3
#define SLOTS_AT 64
#define TX_SLOT 12
#define RX_SLOT 8
#define RING_SLOTS 256
#define FRONT_PAGES 24
/* Pages for frames to it, at first. */
#define FRONT_POSTED 64
#define FRONT_FRAME_MAX 65536
/* The length of a good frame from the guest, of three fragments. */
#define FRONT_SENT 2100

/* grant_table.c */
#define GRANTS 2000
#define NO_GRANT GRANTS /* a reference that is none */
extern unsigned int table_mapped, table_granted;
extern u64 table_ops; /* operations, of hypercalls */
extern void (*table_meanwhile)(void); /* called before each hypercall that copies */
grant_ref_t table_grant(u16 of, bool readonly);
bool table_end(grant_ref_t gref); /* false: it is mapped */
void *table_page(grant_ref_t gref);
void table_fill(grant_ref_t gref, u8 seed, u8 step);

/* store.c */
void store_empty(const char *dir);

/* interrupt.c */
extern unsigned int channels_bound;
extern atomic_t channel_events, channel_spurious, polls;
extern u64 poll_ops_most;
void channel_send(u32 port);
void channels_end(void);

struct front {
	struct xenbus_device xbdev;
	char name[32], back_dir[32], front_dir[32];
	u16 of;
	unsigned int handle;
	bool is_there; /* the driver has the device */
	u32 port, ctrl_port;
	grant_ref_t tx, rx, ctrl; /* its rings; 0: none */
	grant_ref_t pages[FRONT_PAGES]; /* for frames from it, readable */
	grant_ref_t room[RING_SLOTS]; /* for frames to it: by slot */
	u32 tx_prod, tx_cons, rx_prod, rx_cons;
	/* The host's side: what came from the guest. */
	struct net_device *netdev;
	bool has_handler;
	struct front *sends_on; /* what comes goes to this one */
	bool keeps; /* what comes stays in the stack: `kept` */
	struct sk_buff *kept;
	unsigned int arrived;
	size_t last_len;
	u8 *last, *wanted;
};

/* Waits until a condition is true, for a minute at most: a machine may be slow. */
#define within_a_minute(condition) ({                                     \
	unsigned long until_ = jiffies + 60 * HZ;                         \
	bool is_true_;                                                    \
	while (!(is_true_ = (condition)) && time_before(jiffies, until_)) \
		usleep_range(500, 1000);                                  \
	is_true_;                                                         \
})

/* front.c. Those that return a text return what is wrong, or NULL. */
extern struct xenbus_driver *driver_of_back;
struct front *front_new(u16 of, unsigned int handle);
void front_free(struct front *front);
unsigned int front_back_state(const struct front *front);
void front_state(struct front *front, unsigned int state);
int front_probe(struct front *front);
void front_keys(struct front *front);
/* The handshake up to the keys; and all of it. */
const char *front_begin(struct front *front);
const char *front_connect(struct front *front);
const char *front_up(struct front *front);
void front_renew(struct front *front);
const char *front_ended(struct front *front);
void front_close(struct front *front);
void front_remove(struct front *front);

/* Writes a slot of the ring of what the guest sends, which front_publish() makes the back's. */
void front_put(struct front *front, const u32 words[3]);
void front_publish(struct front *front);
void front_publish_index(struct front *front, u32 prod);
/* A frame of fragments of these lengths, with ids from 0 on; extras come after the first slot. */
struct slots {
	u32 words[RING_SLOTS][3];
	unsigned int n;
};
void front_frame(struct front *front, struct slots *to, const u16 *lens, unsigned int n, u16 flags);
void front_send(struct front *front, const struct slots *slots);
struct xen_netif_tx_request *request(struct slots *slots, unsigned int k);
void slots_extra(struct slots *slots, u8 type, u8 flags, u16 size, u8 gso);
/* The answers to these slots: their statuses, in order. */
const char *front_answers(struct front *front, unsigned int n, s16 *statuses);
const char *front_answered(struct front *front, const struct slots *slots, s16 status);
/* A frame of one slot: its answer has this status, and it arrives, or does not, with its length. */
const char *front_asks(struct front *front, const struct xen_netif_tx_request *request, s16 status);
/* A good frame from the guest, of which each byte is compared, and one for it. */
const char *front_sends(struct front *front);
const char *front_receives(struct front *front);
void front_put_room(struct front *front, grant_ref_t gref);
void front_publish_room(struct front *front, u32 prod);
void front_post(struct front *front, unsigned int n);
int front_host_sends(struct front *front, unsigned int len);
const char *front_taken(struct front *front, unsigned int len, bool is_well);

/* rules_*.c: what guests break, by the names that docs/threat-model.md has. */
struct rule {
	const char *name;
	const char *(*play)(struct front *front);
	bool ends; /* the back closes the vif, with a reason */
	bool is_alone; /* it sets the vif up, and takes it away, itself */
};
#define RULE(function, ...) { #function, function, ##__VA_ARGS__ }
/* The last has no name. */
extern const struct rule rules_of_tx[], rules_of_rx[], rules_of_shared[], rules_of_data_rings[], rules_of_vif[];

extern struct front *neighbour;

#endif
