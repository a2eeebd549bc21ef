/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * A vif's backend: its net_device, its queues, and who runs where.
 *
 *   control   one delayed work item per vif, under `control`: it may sleep, and owns the back
 *   poll      NAPI, one per queue, enabled while the vif is connected: owns the queue's core, and polls
 *             both rings
 *   xmit      ndo_start_xmit: adds an skb for the guest to `waiting`, and schedules the poll after the
 *             last of several, or wakes the thread
 *   thread    one per queue, while the vif is connected: schedules the poll
 *   event     interrupt handler: schedules the poll
 *   xenwatch  one thread of the kernel for all devices: queues control, and takes devices away
 *
 *   guest --TX ring--> poll: the core copies, an skb is made --> the stack
 *   guest <--RX ring-- poll: the core copies <-- waiting <-- xmit <-- the stack
 *
 * TX and RX are the guest's view in the core, and the interface's in names of net_device: what the
 * guest sends is received here.
 *
 * Lock order: `control`; a guest's `steps`; RTNL; `queues_lock`. No lock is between xmit and the
 * poll: the stack has one sender at a time (netdev_queue's lock), and NAPI one poll.
 */
#ifndef PREGRANT_DRIVER_H
#define PREGRANT_DRIVER_H

#include <linux/hrtimer.h>
#include <linux/if_ether.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/ptr_ring.h>
#include <linux/ratelimit.h>
#include <linux/skbuff.h>
#include <linux/workqueue.h>
#include <xen/xenbus.h>

#include "pregrant.h"

#define PREGRANT_FRAME_MAX 65535
/* Before a vif goes to another back: what is under way to the guest may come for so long. */
#define PREGRANT_ON_THE_WAY_MS 100
#define PREGRANT_MTU_MAX (PREGRANT_FRAME_MAX - 18)
/* What may wait for a guest in each queue; above it the stack's queue is stopped. */
#define PREGRANT_WAIT_FRAMES 512
#define PREGRANT_WAIT_BYTES (1 << 20)
/* Places for them. The poll empties places by several, and senders find some taken until then. */
#define PREGRANT_WAIT_PLACES (2 * PREGRANT_WAIT_FRAMES)
/* What the core takes of it at once: its burst. */
#define PREGRANT_BURST_FRAMES 64
/* Memory for bursts from the guest, of which skbs may have parts. */
#define PREGRANT_BURSTS 8
/* Fragments of these in a burst. An skb with more is copied. */
#define PREGRANT_PIECES 192
/* What may wait in the stack's queue meanwhile (txqueuelen), which has no limit in bytes. */
#define PREGRANT_QDISC_FRAMES 32

struct pregrant_queue {
	struct pregrant_device *dev;
	unsigned int index;

	/* skbs for the guest: the sender adds, the poll takes; while there is none, control. */
	struct ptr_ring waiting;
	u32 frames_in; /* the sender's: all that it ever added; it wraps */
	u32 bytes_in;
	bool takes_frames; /* for senders: there is a thread, and NAPI is enabled */
	struct task_struct *thread; /* changed under `queues_lock`; NULL: none */
	int has_frames; /* the thread was woken */
	/* When a process' frame last found no poll to come: under the netdev_queue lock. */
	u64 sent_at;
	/* What was taken of `waiting`, likewise: of who takes. */
	u32 frames_out, bytes_out;
	bool drops_waiting; /* control asks the poll to drop what waits */
	/* Those of the core's burst, skbs that it reads, and their bytes: of who has the core. */
	struct pregrant_frame frames[PREGRANT_BURST_FRAMES];
	struct sk_buff_head lent;
	struct pregrant_lent_piece pieces[PREGRANT_PIECES];
	unsigned int nr_pieces;

	/* The poll's: */
	struct napi_struct napi;
	struct pregrant_back_queue *core; /* NULL: none, and NAPI is disabled */
	struct hrtimer timer; /* for the core's deadline */
	struct list_head received; /* skbs of one poll, for the stack */
	struct page *bursts[PREGRANT_BURSTS]; /* NULL: not made */
	struct page *burst; /* of these, where frames are fetched; NULL: in the core's own memory */
	unsigned int batches;
	bool is_polled; /* in the poll: skbs are freed by several */
	bool is_broken; /* the guest broke the protocol */

	struct pregrant_back_counters *counters; /* under `queues_lock`; NULL: none */
	u64 tx_packets, tx_bytes, tx_dropped; /* to the guest; of who takes of `waiting` */
	u64 rx_packets, rx_bytes, rx_dropped; /* from it; the poll's */
};

/* Bits of `events`: what happened since control ran, in any context. */
enum pregrant_event {
	PREGRANT_EV_FAULT, /* the guest broke the protocol on a ring */
	PREGRANT_EV_UP, /* the interface was set up */
	PREGRANT_EV_RATE, /* the toolstack's key `rate` may have changed */
};

/* A guest, of which several vifs may be. */
struct pregrant_guest {
	struct list_head list;
	u16 of;
	unsigned int users; /* its vifs */
	atomic_t pages; /* that are mapped */
	struct mutex steps; /* held for a step of a vif of its */
	/* Under `steps`: pages that its vifs have or may ask for, and have; vifs connected. */
	unsigned int reserved, needed, connected;
};

struct pregrant_device {
	struct xenbus_device *xbdev;
	struct pregrant_guest *guest;
	struct net_device *netdev;
	struct xenbus_watch watch; /* of the own directory; `node` NULL: none */
	struct pregrant_files *files; /* in sysfs; NULL: none */
	char *script; /* the toolstack's hotplug script, for the uevent; NULL: none */
	unsigned int max_queues;
	struct pregrant_queue *queues;

	struct mutex control;
	struct delayed_work work;
	/* Under `control`: */
	struct pregrant_back *back;
	struct list_head channels; /* event channels */
	bool bound; /* between probe and remove; control runs only then */
	bool registered; /* the interface exists */
	bool was_left; /* at probe another back's, connected */
	bool held; /* its guest's frames wait on the ring, for the next back */

	struct mutex queues_lock;
	unsigned int queues_up; /* under `queues_lock`: queues that are polled; 0: not connected */
	char paths[PREGRANT_PATH_ROOM]; /* under `queues_lock`: of queue 0 */

	/* Written and read in any context. */
	unsigned long events; /* enum pregrant_event */
	bool is_up; /* the interface is, and its bridge knows: it takes the guest's frames */
	unsigned long runs_until; /* jiffies: each run of control adds its share, for pacing */
	u32 takes; /* PREGRANT_GUEST_*; 0: not connected */
	u32 mtu_limit; /* 0: none */
	struct pregrant_steer __rcu *steering; /* written under `control`; NULL: the stack chooses queues */
	/* Written under its guest's `steps`: pages that it has or may ask for, and that it has. */
	unsigned int reserved, needed;
	unsigned int connects;
	struct ratelimit_state log_limit; /* of lines that a guest can cause */
};

/* keys.c: the guest's directory. */
static inline const char *pregrant_peer_dir(const struct pregrant_device *dev)
{
	return dev->xbdev->otherend;
}

static inline void pregrant_peer_state_was_read(struct pregrant_device *dev, bool is_readable)
{
}

/* device.c */
extern struct workqueue_struct *pregrant_control;
extern unsigned int pregrant_guest_pages; /* most that a guest may have mapped */

/* control.c */
void pregrant_control_work(struct work_struct *work);
void pregrant_wake_control(struct pregrant_device *dev);
void pregrant_end(struct pregrant_device *dev);
bool pregrant_hold(struct pregrant_device *dev);
bool pregrant_leave(struct pregrant_device *dev);
void pregrant_note_paths(struct pregrant_device *dev);

/* netdev.c */
struct net_device *pregrant_netdev_new(struct xenbus_device *xbdev, unsigned int handle, unsigned int max_queues);

/* queue.c */
int pregrant_queue_init(struct pregrant_queue *queue, struct pregrant_device *dev, unsigned int index);
void pregrant_queue_purge(struct pregrant_queue *queue);
void pregrant_queue_free(struct pregrant_queue *queue);
void pregrant_queue_wake(struct pregrant_queue *queue);
void pregrant_queue_took(struct pregrant_queue *queue, u32 frames, u32 bytes);
int pregrant_queue_start(struct pregrant_queue *queue, struct pregrant_back_queue *core,
			 struct pregrant_back_counters *counters);
void pregrant_queue_refuse(struct pregrant_queue *queue);
void pregrant_queue_stop(struct pregrant_queue *queue);
netdev_tx_t pregrant_xmit(struct sk_buff *skb, struct net_device *netdev);

/* burst.c */
void pregrant_bursts_free(struct pregrant_queue *queue);

/* frame.c */
void pregrant_deliver(struct pregrant_queue *queue);

/* channel.c */
extern atomic_t pregrant_spurious_events;

/* events.c */
void pregrant_channels_connect(struct pregrant_device *dev, struct pregrant_queue *queue,
			       struct pregrant_back_queue *core);

/* map.c: pages of guests that are mapped, and those that could not be unmapped. */
extern atomic64_t pregrant_maps, pregrant_maps_lost;
void pregrant_maps_tidy(void);
void pregrant_maps_end(void);

/* guest.c */
struct pregrant_guest *pregrant_guest_get(u16 of);
void pregrant_guest_put(struct pregrant_guest *guest);
u32 pregrant_guest_step(struct pregrant_device *dev);
void pregrant_guest_leave(struct pregrant_device *dev);

/* ethtool.c */
#define PREGRANT_VIF_COUNTERS 8
extern const char *const pregrant_vif_counters[PREGRANT_VIF_COUNTERS];
extern const char *const pregrant_queue_counters[PREGRANT_BACK_COUNTERS];
void pregrant_count_vif(struct pregrant_device *dev, u64 *to);
void pregrant_count_queue(struct pregrant_queue *queue, u64 *to);
extern const struct ethtool_ops pregrant_ethtool;

/* sysfs.c */
void pregrant_files_add(struct pregrant_device *dev);
void pregrant_files_remove(struct pregrant_device *dev);

#include "both.h"

#endif
