/* What a load into the simulated GPU's memory costs without the loading:
 *
 *   copy_baseline FILE OFFSET NBYTES READERS KIND
 *
 * KIND: read, direct (which reads past the page cache), copy or both. Both is a pipeline of readers,
 * with two slots each, and two threads that copy, as many as the streams of a load. Prints the
 * wall-clock and CPU seconds that it took. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { SLOT = 4 << 20, MAX_READERS = 64, COPIERS = 2, PAGE = 4096 };

struct slot {
  char *bytes;
  long at, size;
  int is_full;
  struct slot *next;
};

static int file, reads, copies;
static long begin_offset, nbytes, next;
static char *destination;
static struct slot slots[MAX_READERS][2];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and is_full */
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER, emptied = PTHREAD_COND_INITIALIZER;
static struct slot *first, *last;
static int readers_left;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

static double cpu_seconds(void) {
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
  return use.ru_utime.tv_sec + use.ru_stime.tv_sec +
         (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static void copy(const struct slot *slot) {
  memcpy(destination + slot->at, slot->bytes, slot->size);
}

static void hand_over(struct slot *slot) {
  pthread_mutex_lock(&mutex);
  slot->is_full = 1;
  slot->next = NULL;
  if (first)
    last->next = slot;
  else
    first = slot;
  last = slot;
  pthread_cond_signal(&filled);
  pthread_mutex_unlock(&mutex);
}

static void await_empty(struct slot *slot) {
  pthread_mutex_lock(&mutex);
  while (slot->is_full) pthread_cond_wait(&emptied, &mutex);
  pthread_mutex_unlock(&mutex);
}

static void *read_parts(void *own) {
  struct slot *slot = own;
  for (int turn = 0;; turn ^= 1) {
    struct slot *to = slot + turn;
    long at = __atomic_fetch_add(&next, SLOT, __ATOMIC_RELAXED);
    if (at >= nbytes) break;
    if (reads && copies) await_empty(to);
    to->at = at;
    to->size = nbytes - at < SLOT ? nbytes - at : SLOT;
    /* Whole pages, for O_DIRECT; past the end of the file it gets what there is. */
    long wanted = (to->size + PAGE - 1) / PAGE * PAGE;
    if (reads && pread(file, to->bytes, wanted, begin_offset + at) < to->size) exit(1);
    if (reads && copies)
      hand_over(to);
    else if (copies)
      copy(to);
  }
  pthread_mutex_lock(&mutex);
  readers_left--;
  pthread_cond_broadcast(&filled);
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static void *copy_parts(void *unused) {
  (void)unused;
  pthread_mutex_lock(&mutex);
  for (;;) {
    while (!first && readers_left > 0) pthread_cond_wait(&filled, &mutex);
    struct slot *slot = first;
    if (!slot) break;
    first = slot->next;
    pthread_mutex_unlock(&mutex);
    copy(slot);
    pthread_mutex_lock(&mutex);
    slot->is_full = 0;
    pthread_cond_broadcast(&emptied);
  }
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static char *map(long size, int fd) {
  int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory == MAP_FAILED) exit(1);
  madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

int main(int argc, char **argv) {
  if (argc != 6) return 1;
  int is_direct = strcmp(argv[5], "direct") == 0;
  file = open(argv[1], O_RDONLY | (is_direct ? O_DIRECT : 0));
  begin_offset = atol(argv[2]);
  nbytes = atol(argv[3]);
  if (is_direct) {
    long before = begin_offset % PAGE;
    begin_offset -= before;
    nbytes += before;
  }
  readers_left = atoi(argv[4]);
  reads = strcmp(argv[5], "copy") != 0;
  copies = strcmp(argv[5], "read") != 0 && !is_direct;
  int readers = readers_left;
  if (file < 0 || readers < 1 || readers > MAX_READERS) return 1;
  for (int i = 0; i < readers; i++) {
    char *memory = map(2 * SLOT, -1);
    memset(memory, 1, 2 * SLOT);
    slots[i][0].bytes = memory;
    slots[i][1].bytes = memory + SLOT;
  }
  if (copies) {
    int memory = memfd_create("destination", 0);
    if (ftruncate(memory, nbytes) != 0) return 1;
    destination = map(nbytes, memory);
    memset(destination, 1, nbytes);
  }

  double begin = seconds(), used = cpu_seconds();
  pthread_t threads[MAX_READERS + COPIERS];
  int count = 0;
  for (; count < readers; count++) pthread_create(&threads[count], NULL, read_parts, slots[count]);
  int copiers = reads && copies ? COPIERS : 0;
  for (; count < readers + copiers; count++) {
    pthread_create(&threads[count], NULL, copy_parts, NULL);
  }
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
  printf("%f %f\n", seconds() - begin, cpu_seconds() - used);
}
